"""The rows of jobs' sinks: which are due, their claims, the last step sent, and failures.

If the claiming process dies, another one continues after the last step that the sink contains. A step is sent
when the next one exists, because the evaluation after a step is stored with it.
Boundary: rows; `worker/sinks/` writes to the sinks, outside of any transaction.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.orm import Session

from service.jobs.model.states import ENDED, HELD, TERMINAL, JobState
from service.jobs.progress import evaluations
from service.jobs.progress.metrics import MetricRow, metric_rows
from service.jobs.store import history
from service.platform.clock import db_now
from service.platform.leases import QUIET, Leases
from service.platform.tables.core import Job
from service.platform.tables.sinks import JobSink

CLAIM_SECONDS = 120.0
"""Duration of a claim; longer than a sink's own time limits."""
BACKOFF_SECONDS = (5.0, 30.0, 120.0, 600.0, 3600.0, 21_600.0, 86_400.0)
"""Pauses after consecutive failures; then the sink is given up."""
MAX_ROWS = 500
"""Rows per query, so that the metrics of a long job fit in memory."""
MAX_REASON_CHARS = 400
LEASES = Leases(
    JobSink, (JobSink.job_id, JobSink.type), JobSink.claim, JobSink.due_at, active=JobSink.due_at.is_not(None)
)


@dataclass(frozen=True)
class Claim:
    """One sink of one job, and the number of the claim."""

    job_id: str
    type: str
    number: int


def claim_due(session: Session, pool: str) -> Claim | None:
    """Claim the sink that has been due for longest and has new metrics. None: none is due."""
    # the newest step may still change until the next step or the job's end
    has_new_metrics = or_(Job.step > JobSink.step + 1, Job.state.in_(ENDED))
    due = (
        select(JobSink.job_id, JobSink.type)
        .join(Job, Job.id == JobSink.job_id)
        .where(LEASES.has_expired, Job.pool == pool, has_new_metrics)
        .order_by(JobSink.due_at)
    )
    claiming = LEASES.claim(due, CLAIM_SECONDS).returning(JobSink.job_id, JobSink.type, JobSink.claim)
    row = session.execute(claiming, execution_options=QUIET).one_or_none()
    return None if row is None else Claim(*row)


def claimed_rows(session: Session, claim: Claim) -> tuple[Job, JobSink] | None:
    """The job and its sink. None: the claim is stale."""
    query = select(Job, JobSink).join(JobSink, JobSink.job_id == Job.id).where(_is_held(claim))
    return session.execute(query).one_or_none()


@dataclass(frozen=True)
class NewMetrics:
    """The metrics after a step."""

    rows: Sequence[MetricRow]
    """Complete steps in order; the evaluation before training is step 0."""
    state: JobState
    has_more: bool

    @property
    def is_over(self) -> bool:
        return self.state in TERMINAL and not self.has_more

    @property
    def is_at_rest(self) -> bool:
        """Whether no worker holds the job and no metrics are left to send."""
        return self.state not in HELD and not self.has_more


def new_metrics(session: Session, job_id: str, after_step: int) -> NewMetrics:
    """The metrics after a step, at most MAX_ROWS rows."""
    # the state is read first, because then all metrics of a terminal job are read
    columns = (Job.state, Job.tenant, Job.step, Job.evaluation)
    job = session.execute(select(*columns).where(Job.id == job_id)).one()
    state = JobState(job.state)
    found = metric_rows(session, job.tenant, job_id, after_step=max(0, after_step), limit=MAX_ROWS)
    rows = [row for row in found if state in TERMINAL or row["step"] < job.step]
    if after_step < 0 and (measured := evaluations.baseline(job.evaluation)):
        rows.insert(0, {"step": 0, **measured})
    return NewMetrics(rows, state, has_more=len(found) == MAX_ROWS)


def advance(session: Session, claim: Claim, step: int) -> bool:
    """Record the last written step and renew the lease. False: the claim is stale."""
    renewed = LEASES.renew(_is_held(claim), CLAIM_SECONDS, step=step, failures=0).returning(JobSink.type)
    return session.scalar(renewed, execution_options=QUIET) is not None


def release(session: Session, claim: Claim) -> bool:
    """End the claim; the sink is due as soon as there are new metrics. False: the claim is stale."""
    return _write(session, claim, due_at=db_now(), claim=JobSink.claim + 1)


def finish(session: Session, claim: Claim) -> bool:
    """Record that everything was sent. False: the claim is stale."""
    return _write(session, claim, state="done", due_at=None, reason="")


def is_held(session: Session, claim: Claim) -> bool:
    """Whether the claim still holds, and was renewed in time."""
    current = select(JobSink.type).where(_is_held(claim), ~LEASES.has_expired)
    return session.scalar(current) is not None


def has_lapsed(session: Session, claim: Claim) -> bool:
    """Whether the claim still holds, and was not renewed in time."""
    return session.scalar(select(JobSink.type).where(_is_held(claim), LEASES.has_expired)) is not None


def fail(session: Session, claim: Claim, reason: str) -> bool:
    """Record a failure; the sink is due after a pause, or given up. Warns once. False: the claim is stale."""
    row = session.scalar(select(JobSink).where(_is_held(claim)))
    if row is None:
        return False
    pauses = BACKOFF_SECONDS[row.failures : row.failures + 1]
    due_at: ColumnElement[float] | None = db_now() + pauses[0] if pauses else None
    state = "pending" if pauses else "failed"
    reason = reason[:MAX_REASON_CHARS]
    if not _write(session, claim, state=state, due_at=due_at, failures=row.failures + 1, reason=reason):
        return False
    _warn_once(session, claim, reason)
    return True


def _warn_once(session: Session, claim: Claim, reason: str) -> None:
    """Add a warning to the job, and to its history if it has not ended."""
    code = f"sink_{claim.type}"
    job = session.scalars(select(Job).where(Job.id == claim.job_id).with_for_update()).one()
    session.refresh(job, ["warnings", "state", "fence"])
    if any(earlier.get("code") == code for earlier in job.warnings):
        return
    message = f"{claim.type} did not accept the metrics: {reason} They are kept here and sent again later."
    job.warnings = [*job.warnings, {"code": code, "message": message}]
    session.flush()
    if JobState(job.state) not in TERMINAL:
        entry = history.HistoryEntry("message", message, "warn", {"code": code}, job.fence)
        history.append(session, job.id, entry)


def _is_held(claim: Claim) -> ColumnElement[bool]:
    return LEASES.is_held(claim.job_id, claim.type, number=claim.number)


def _write(session: Session, claim: Claim, /, **values: Any) -> bool:
    return LEASES.write(session, claim.job_id, claim.type, number=claim.number, **values)
