"""Random schedules of workers, zombies, users, sweepers and clock jumps: each call beside its prediction.

A rule calls what the API and the workers call and compares the answer with `queue_model`'s; after each step
all rows are compared, too. The database's clock is the table `virtual_clock`, which the caller has made.
"""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import delete
from sqlalchemy.orm import Session

from grpo_engine.contract import events as engine
from service.jobs.model.states import JobState
from service.jobs.progress import publishing, recording
from service.jobs.store import claiming, queue, sweeping
from service.platform.db import Database
from service.platform.tables.core import Checkpoint, Job, JobEvent, Metric
from tests.service.jobs.store.queue_model import KEPT_CHECKPOINTS, MAX_FAILURES, Model, ModelJob, Refused
from tests.service.jobs.store.queue_rows import Rows, check_history, check_rows, read_rows
from tests.service.jobs.store.virtual_clock import set_clock
from tests.worker.jobs import checkpoint, insert_job

MAX_JOBS = 4
POOLS, TENANTS, WORKERS = ("cpu", "cpu", "gpu"), ("acme", "globex"), ("w1", "w2", "w3")
STARTS_AT = 10_000.0
WHOSE = st.sampled_from(["current", "current", "current", "zombie", "forged"])
SECONDS = st.sampled_from([0.0, 5.0, 60.0])
ENDS = st.sampled_from([JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.PAUSED])


class QueueMachine(RuleBasedStateMachine):
    """One schedule."""

    jobs = Bundle("jobs")

    def __init__(self, database: Database) -> None:
        super().__init__()
        self.database = database
        self.model = Model(STARTS_AT)
        self.num_values = 0
        self.seen = Rows()
        self.must_stay = False
        """Whether the last step was a write under a fence that holds nothing."""

    @initialize()
    def empty(self) -> None:
        with self.database.transaction() as session:
            for table in (JobEvent, Metric, Checkpoint, Job):
                session.execute(delete(table))
        self.set_clock(STARTS_AT)

    def set_clock(self, now: float) -> None:
        self.model.now = now
        with self.database.transaction() as session:
            set_clock(session, now)

    @rule(seconds=st.sampled_from([1.0, 10.0, 30.0, 31.0, 301.0, -1.0, -40.0, -3600.0]))
    def the_clock_jumps(self, seconds: float) -> None:
        self.set_clock(self.model.now + seconds)

    @precondition(lambda self: len(self.model.jobs) < MAX_JOBS)
    @rule(
        target=jobs,
        tenant=st.sampled_from(TENANTS),
        pool=st.sampled_from(POOLS),
        priority=st.integers(0, 1),
        gpus=st.sampled_from([0, 0, 1]),
    )
    def submit(self, tenant: str, pool: str, priority: int, gpus: int) -> str:
        given = {"tenant": tenant, "pool": pool, "priority": priority}
        job_id = insert_job(self.database, required_gpus=gpus, **given)
        self.model.jobs[job_id] = ModelJob(id=job_id, gpus=gpus, created_at=self.model.now, **given)  # type: ignore[arg-type]
        return job_id

    @rule(
        pool=st.sampled_from(POOLS),
        worker=st.sampled_from(WORKERS),
        gpus=st.sampled_from([0, 1, 1, 1]),
        lease=st.sampled_from([0.0, 0.0, 30.0]),
    )
    def claim(self, pool: str, worker: str, gpus: int, lease: float) -> None:
        candidates = self.model.best(pool, gpus)
        with self.database.connection() as session:
            job = claiming.claim(session, pool=pool, worker=worker, lease_seconds=lease, gpus=gpus)
        assert (job is None) == (not candidates)
        if job is not None:
            assert job.id in candidates
            self.model.jobs[job.id].claim(worker, self.model.now, lease)

    def fenced(self, job_id: str, whose: str, write: Callable[[Session, ModelJob, int], Any]) -> Any:
        """A worker's write; under a stale fence it must change nothing."""
        job = self.model.jobs[job_id]
        fence = job.fence + {"current": 0, "zombie": -1, "forged": 1}[whose]
        self.must_stay = not job.holds(fence)
        try:
            with self.database.transaction() as session:
                answer = write(session, job, fence)
        except queue.WrongState:
            answer = Refused
        return answer, fence

    @rule(job_id=jobs, whose=WHOSE, lease=SECONDS)
    def renew(self, job_id: str, whose: str, lease: float) -> None:
        def write(session: Session, job: ModelJob, fence: int) -> Any:
            return queue.renew(session, job_id, fence, lease_seconds=lease)

        answer, fence = self.fenced(job_id, whose, write)
        assert answer == self.model.jobs[job_id].renew(fence, self.model.now, lease)

    @rule(job_id=jobs, whose=WHOSE, is_failure=st.booleans(), backoff=SECONDS)
    def release(self, job_id: str, whose: str, is_failure: bool, backoff: float) -> None:
        def write(session: Session, job: ModelJob, fence: int) -> Any:
            given: dict[str, Any] = {"counts_as_failure": is_failure, "backoff_seconds": backoff}
            return queue.release(session, job_id, fence, reason="", max_failures=MAX_FAILURES, **given)

        answer, fence = self.fenced(job_id, whose, write)
        job = self.model.jobs[job_id]
        assert answer == job.release(fence, self.model.now, backoff, is_failure=is_failure)

    @rule(job_id=jobs, whose=WHOSE, end=ENDS)
    def finish(self, job_id: str, whose: str, end: JobState) -> None:
        def write(session: Session, job: ModelJob, fence: int) -> Any:
            failure = {"code": "non_finite", "message": "NaN"} if end is JobState.FAILED else None
            return queue.finish(session, job_id, fence, end, failure=failure)

        answer, fence = self.fenced(job_id, whose, write)
        assert answer == predicted(lambda: self.model.jobs[job_id].finish(fence, end, self.model.now))

    @rule(
        job_id=jobs,
        whose=WHOSE,
        step=st.integers(1, 6),
        what=st.sampled_from(["publish", "withdraw", "retire"]),
    )
    def checkpoints(self, job_id: str, whose: str, step: int, what: str) -> None:
        def write(session: Session, job: ModelJob, fence: int) -> Any:
            if what == "withdraw":
                return publishing.withdraw_checkpoint(session, job_id, fence, step, "damaged")
            if what == "retire":
                return publishing.retire_checkpoints(session, job_id, fence, KEPT_CHECKPOINTS) is not None
            return publishing.publish_checkpoint(session, checkpoint(job_id, step, fence))

        answer, fence = self.fenced(job_id, whose, write)
        assert answer == self.model.jobs[job_id].checkpoint(fence, what, step)

    @rule(
        job_id=jobs,
        whose=WHOSE,
        replayed=st.integers(0, 3),
        steps=st.lists(st.integers(1, 8), max_size=4),
        phase=st.sampled_from([None, "loading", "training"]),
    )
    def record(self, job_id: str, whose: str, replayed: int, steps: list[int], phase: str | None) -> None:
        """An engine that has resumed repeats sequences and steps, and measures other values."""
        sequence = max(1, self.model.jobs[job_id].engine_sequence + 1 - replayed)
        measured = []
        for number, step in enumerate(steps, sequence):
            self.num_values += 1
            measured.append((number, step, float(self.num_values)))

        def write(session: Session, job: ModelJob, fence: int) -> Any:
            events: list[engine.Event] = [
                engine.StepFinished(sequence=number, step=step, metrics={"reward": value})
                for number, step, value in measured
            ]
            if phase is not None:
                last = max(job.engine_sequence, sequence + len(steps) - 1)
                events.append(engine.PhaseChanged(sequence=last + 1, phase=phase))  # type: ignore[arg-type]
            return recording.record_events(session, job_id, fence, events)

        answer, fence = self.fenced(job_id, whose, write)
        assert answer == self.model.jobs[job_id].record(fence, measured, phase)

    @rule(job_id=jobs, verb=st.sampled_from(sorted(queue.REQUESTS)), tenant=st.sampled_from(TENANTS))
    def request(self, job_id: str, verb: queue.Verb, tenant: str) -> None:
        job = self.model.jobs[job_id]
        try:
            with self.database.transaction() as session:
                answer: Any = queue.request(session, tenant, job_id, verb)
        except queue.WrongState:
            answer = Refused
        assert answer == (
            predicted(lambda: job.request(verb, self.model.now)) if tenant == job.tenant else None
        )

    @rule(backoff=SECONDS)
    def maintain(self, backoff: float) -> None:
        with self.database.transaction() as session:
            swept = sweeping.sweep(session, backoff_seconds=backoff, max_failures=MAX_FAILURES)
        assert {(each.id, each.state) for each in swept} == self.model.sweep(backoff)
        with self.database.transaction() as session:
            assert sorted(sweeping.due_pools(session)) == self.model.due_pools()

    @invariant()
    def rows_are_as_predicted(self) -> None:
        rows = read_rows(self.database)
        check_rows(rows, self.model)
        check_history(self.seen, rows)
        assert rows == self.seen or not self.must_stay
        self.seen, self.must_stay = rows, False


def predicted(answer: Callable[[], Any]) -> Any:
    """The model's answer, or `Refused`."""
    try:
        return answer()
    except Refused:
        return Refused
