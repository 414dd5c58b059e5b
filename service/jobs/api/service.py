"""Operations on existing jobs: list, read, edit, cancel, pause, resume, events, checkpoints, downloads."""

from dataclasses import dataclass

from service.jobs.api import editing
from service.jobs.api.responses import checkpoint_read, event_read, read_jobs
from service.jobs.model import names
from service.jobs.model.editing import JobEdit
from service.jobs.model.schemas import CheckpointRead, EventRead, JobRead
from service.jobs.model.states import TERMINAL, JobState, already
from service.jobs.progress.metrics import evaluations_at
from service.jobs.results.weights import Which, requested_weights, weights_at
from service.jobs.store import listing, queue, repository
from service.jobs.store.lineage import StoredWeights
from service.jobs.store.listing import JobFilter, Sort
from service.jobs.store.repository import require_job
from service.jobs.store.wakeups import Wakeups
from service.platform import audit
from service.platform.db import Database
from service.platform.errors import InvalidRequest
from service.platform.pages import unknown_cursor
from service.platform.principal import Principal
from service.settings import Settings


@dataclass(frozen=True)
class Jobs:
    """Operations of one deployment."""

    database: Database
    wakeups: Wakeups
    settings: Settings

    def page(
        self, tenant: str, wanted: JobFilter, *, sort: Sort, after: str | None, limit: int
    ) -> list[JobRead]:
        """At most `limit` + 1 jobs. Raises NotFound if `after` is not a job of the tenant."""
        with self.database.reading() as session:
            jobs = listing.page(session, tenant, wanted, sort=sort, after=after, limit=limit)
            return read_jobs(session, tenant, jobs, self.settings)

    def read(self, tenant: str, job_id: str) -> JobRead:
        with self.database.reading() as session:
            return read_jobs(session, tenant, [require_job(session, tenant, job_id)], self.settings)[0]

    def edit(self, principal: Principal, job_id: str, change: JobEdit) -> JobRead:
        """Changes name, notes, tags or archiving. Raises NotFound."""
        with self.database.transaction() as session:
            job = editing.edit_job(session, principal, job_id, change)
            return read_jobs(session, principal.tenant, [job], self.settings)[0]

    def request(self, principal: Principal, job_id: str, verb: queue.Verb) -> JobRead:
        """Changes the job's state at once if no worker holds it, otherwise at the worker's next heartbeat."""
        with self.database.transaction() as session:
            try:
                state = queue.request(session, principal.tenant, job_id, verb)
            except queue.WrongState as error:
                raise _wrong_state(error.current, verb) from error
            job = require_job(session, principal.tenant, job_id)
            audit.record(session, principal, f"job.{verb}", job_id)
            response = read_jobs(session, principal.tenant, [job], self.settings)[0]
        if state is JobState.QUEUED:
            self.wakeups.send(job.pool)
        return response

    def events(self, tenant: str, job_id: str, *, after: str | None, limit: int) -> list[EventRead]:
        """The job's events, newest first, at most `limit` + 1."""
        before = None if after is None else names.event_sequence(job_id, after)
        with self.database.reading() as session:
            require_job(session, tenant, job_id)
            if after is not None and before is None:
                raise unknown_cursor(after)
            rows = repository.events_before(session, tenant, job_id, before=before, limit=limit)
        return [event_read(row) for row in rows]

    def checkpoints(self, tenant: str, job_id: str, *, after: str | None, limit: int) -> list[CheckpointRead]:
        """The job's checkpoints, newest first, at most `limit` + 1."""
        with self.database.reading() as session:
            job = require_job(session, tenant, job_id)
            last = None if after is None else repository.find_checkpoint(session, tenant, after)
            if after is not None and (last is None or last.job_id != job_id):
                raise unknown_cursor(after)
            step = last.step if last else None
            rows = repository.checkpoints_of(session, tenant, job_id, before_step=step, limit=limit + 1)
            evaluated = evaluations_at(session, job_id, [row.step for row in rows])
            return [checkpoint_read(row, job, evaluated.get(row.step, {})) for row in rows]

    def weights(self, tenant: str, job_id: str, *, which: Which, checkpoint: str | None) -> StoredWeights:
        """The weights to download (`requested_weights`)."""
        with self.database.reading() as session:
            job = require_job(session, tenant, job_id)
            return requested_weights(session, tenant, job, which, checkpoint)

    def checkpoint_weights(self, tenant: str, checkpoint_id: str, job_id: str | None = None) -> StoredWeights:
        """A checkpoint's adapter. Raises NotFound if it does not belong to the tenant and the job."""
        with self.database.reading() as session:
            return weights_at(session, tenant, checkpoint_id, job_id)


def _wrong_state(current: JobState, verb: str) -> InvalidRequest:
    if current in TERMINAL:
        message = f"The job {already(current)}."
    else:
        message = f"A job that is {current.value} cannot be {verb.removesuffix('e')}ed."
    return InvalidRequest(message, code="invalid_state")
