"""The queue: claim, renew, release and finish a job; cancel, pause and resume it for a user.

Each transition is one conditional UPDATE that names the old state and, for a worker, the fence: 0 rows mean
that another process was first. Only the database's clock decides. Each state change stores a `status` entry
in the same transaction; an end or a pause also stores a delivery for each subscribed webhook.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Integer, Select, bindparam, func, select
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import ReturningUpdate

from service.jobs.model.states import HELD, JobState
from service.jobs.store import history
from service.jobs.store.machines import satisfied_by
from service.jobs.store.transitions import (
    IS_JOB,
    JOBS,
    LEASES,
    LockedJob,
    WrongState,
    end_attempt,
    holds,
    is_in,
    lock_held,
    locked,
    move,
)
from service.platform.clock import db_now
from service.platform.db import Executor, is_postgresql

CLAIM_PAUSE = "5s"
"""How long a worker that is stopped during its claim can block the claims of others."""
CLAIMS_LOCK = 0x6772706F
"""Key of a PostgreSQL advisory lock; the keys of tenants are 64 bits of a digest."""
ENDINGS = {
    JobState.SUCCEEDED: "The job has successfully completed.",
    JobState.FAILED: "The job failed.",
    JobState.CANCELLED: "The job was cancelled.",
    JobState.PAUSED: "The job is paused.",
}


class ClaimedJob(NamedTuple):
    """The columns of a claimed job that its worker needs; fields as in `Job`."""

    id: str
    tenant: str
    pool: str
    fence: int
    attempt: int
    created_at: float
    model: str
    training_file: str
    validation_file: str | None
    suffix: str | None
    seed: int
    method: dict[str, Any]
    probe: dict[str, Any] | None
    export: dict[str, Any] | None
    required_capabilities: str
    required_gpus: int
    checkpoint_step: int
    engine_sequence: int
    event_sequence: int


_CANDIDATE = JOBS.alias("candidate")
_ELIGIBLE = (
    select(_CANDIDATE.c.id)
    .where(is_in("candidate", JobState.QUEUED), _CANDIDATE.c.pool == bindparam("of_pool"))
    .where(_CANDIDATE.c.not_before <= db_now())
    .where(_CANDIDATE.c.required_capabilities.in_(bindparam("satisfied", expanding=True)))
    .where(_CANDIDATE.c.required_gpus <= bindparam("gpus"))
    .where(_CANDIDATE.c.required_gpu_memory_gb <= bindparam("gpu_memory_gb"))
    .order_by(_CANDIDATE.c.priority.desc(), _CANDIDATE.c.created_at)
)
_HOLDING = JOBS.alias("holding")
_TENANTS_AT_LIMIT = (
    select(_HOLDING.c.tenant)
    .where(is_in("holding", *HELD))
    .group_by(_HOLDING.c.tenant)
    .having(func.count() >= bindparam("max_running", type_=Integer))
)
_LOCK_CLAIMS = select(
    func.set_config("idle_in_transaction_session_timeout", bindparam("longest_pause"), True),
    func.pg_advisory_xact_lock(CLAIMS_LOCK),
)
"""Held until the transaction ends. The next statement sees everything committed before the lock was granted.
A process that is stopped for longer in between loses its connection, and with it the lock."""


def _claiming(eligible: Select[Any]) -> ReturningUpdate[Any]:
    claiming = LEASES.claim(
        eligible,
        bindparam("lease_seconds"),
        state=JobState.RUNNING.value,
        phase="preparing",
        attempt=JOBS.c.attempt + 1,
        lease_owner=bindparam("worker"),
        started_at=func.coalesce(JOBS.c.started_at, db_now()),
        event_sequence=JOBS.c.event_sequence + 1,
    )
    return claiming.returning(*(JOBS.c[name] for name in ClaimedJob._fields))


# built once: building takes longer than running them
CLAIM = _claiming(_ELIGIBLE)
CLAIM_LIMITED = _claiming(_ELIGIBLE.where(_CANDIDATE.c.tenant.not_in(_TENANTS_AT_LIMIT)))
"""`CLAIM` without the jobs of tenants that have `max_running` running jobs."""
_HELD = holds(bindparam("job_id"), bindparam("held_fence"))
RENEW = LEASES.renew(_HELD, bindparam("lease_seconds")).returning(JOBS.c.state)


def claim(
    session: Executor,
    *,
    pool: str,
    worker: str,
    lease_seconds: float,
    capabilities: Collection[str] = (),
    gpus: int = 0,
    gpu_memory_gb: int = 0,
    max_running: int | None = None,
) -> ClaimedJob | None:
    """Claim the best eligible job: running, under a new fence and a lease. None: nothing to do.

    Jobs that need other capabilities, or more or larger GPUs, are left for other workers. With `max_running`
    so are jobs of tenants that have that many running jobs; claims are then serialised, because two
    concurrent claims would both count the jobs before either of them.
    """
    given: dict[str, Any] = {"of_pool": pool, "worker": worker, "lease_seconds": lease_seconds}
    given |= {"satisfied": satisfied_by(capabilities), "gpus": gpus, "gpu_memory_gb": gpu_memory_gb}
    if max_running is None:
        row = session.execute(CLAIM, given).one_or_none()
    else:
        if is_postgresql(session):  # SQLite's BEGIN IMMEDIATE has serialised them already
            session.execute(_LOCK_CLAIMS, {"longest_pause": CLAIM_PAUSE})
        row = session.execute(CLAIM_LIMITED, given | {"max_running": max_running}).one_or_none()
    if row is None:
        return None
    job = ClaimedJob._make(row)
    message = f"Attempt {job.attempt} started on {worker}."
    history.store(session, job.id, job.event_sequence, history.status(JobState.RUNNING, message, job.fence))
    return job


def renew(session: Executor, job_id: str, fence: int, *, lease_seconds: float) -> JobState | None:
    """Extend the lease and return the state (cancelling, pausing). None: the lease is lost.

    Progress needs no heartbeat: `recording` writes it with the events, under the same fence and sooner.
    """
    given = {"job_id": job_id, "held_fence": fence, "lease_seconds": lease_seconds}
    state = session.scalar(RENEW, given)
    return None if state is None else JobState(state)


def release(
    session: Session,
    job_id: str,
    fence: int,
    *,
    spend_failure: bool,
    backoff_seconds: float,
    reason: str,
    max_failures: int = 3,
    evidence: tuple[str, ...] = (),
    failure: dict[str, Any] | None = None,
) -> bool:
    """Requeue the job, or cancel or pause it if that was requested meanwhile. False: the fence is stale.

    A spent failure doubles the backoff each time. The `max_failures`-th in a row without a new checkpoint
    ends the job as `poisoned`. `failure`: an exception of the engine, with the same `reason` and `evidence`;
    it ends the job if the attempt before ended with it, too, and there was no new checkpoint in between.
    """
    job = lock_held(session, job_id, fence)
    if job is None:
        return False
    if failure is not None and job.failures and _is_repeated(session, job_id, reason, evidence):
        return finish(session, job_id, fence, JobState.FAILED, failure=failure)
    budget = max_failures if spend_failure else None
    end_attempt(session, job, reason, budget, backoff_seconds, fence, evidence)
    return True


def _is_repeated(session: Session, job_id: str, reason: str, evidence: tuple[str, ...]) -> bool:
    """Whether the last failed attempt ended with the same type of exception, raised at the same place."""
    last = history.newest_failure(session, job_id)
    same_type = last is not None and last.message.partition(":")[0] == reason.partition(":")[0]
    return last is not None and same_type and last.data.get("evidence") == list(evidence)


def finish(
    session: Executor,
    job_id: str,
    fence: int,
    state: JobState,
    *,
    failure: dict[str, Any] | None = None,
    fine_tuned_model: str | None = None,
    trained_tokens: int | None = None,
) -> bool:
    """End the attempt: succeeded, failed, cancelled or paused. False: the fence is stale.

    If a cancel was requested, only success takes precedence over it.
    """
    results: dict[str, Any] = {"fine_tuned_model": fine_tuned_model, "trained_tokens": trained_tokens}
    values = {name: value for name, value in results.items() if value is not None}
    message = failure["message"] if failure else ENDINGS[state]
    if state is not JobState.CANCELLED and move(
        session, job_id, fence, JobState.RUNNING, state, message, failure=failure, **values
    ):
        return True
    job = lock_held(session, job_id, fence)
    if job is None:
        return False
    if job.state == JobState.CANCELLING.value and state is not JobState.SUCCEEDED:
        state, failure, message = JobState.CANCELLED, None, ENDINGS[JobState.CANCELLED]
    return move(session, job_id, fence, JobState(job.state), state, message, failure=failure, **values)


def request_cancel(
    session: Session, tenant: str, job_id: str, *, of: ColumnElement[bool] = IS_JOB
) -> JobState | None:
    """Cancel at once if no worker holds the job, otherwise `cancelling`. None: the tenant has no such job."""
    targets = {
        JobState.QUEUED: JobState.CANCELLED,
        JobState.PAUSED: JobState.CANCELLED,
        JobState.RUNNING: JobState.CANCELLING,
        JobState.PAUSING: JobState.CANCELLING,
    }
    already = {JobState.CANCELLING, JobState.CANCELLED}
    return _request(session, tenant, job_id, targets, already, "Cancel requested.", of)


def request_pause(session: Session, tenant: str, job_id: str) -> JobState | None:
    """Pause after a checkpoint. None: the tenant has no such job."""
    targets = {JobState.QUEUED: JobState.PAUSED, JobState.RUNNING: JobState.PAUSING}
    already = {JobState.PAUSING, JobState.PAUSED}
    return _request(session, tenant, job_id, targets, already, "Pause requested.")


def request_resume(session: Session, tenant: str, job_id: str) -> JobState | None:
    """Queue a paused job again. None: the tenant has no such job."""
    targets = {JobState.PAUSED: JobState.QUEUED}
    return _request(session, tenant, job_id, targets, set(), "Resume requested.")


def _request(
    session: Session,
    tenant: str,
    job_id: str,
    targets: dict[JobState, JobState],
    already: set[JobState],
    message: str,
    of: ColumnElement[bool] = IS_JOB,
) -> JobState | None:
    wanted = locked(JOBS.c.id == job_id, JOBS.c.tenant == tenant, of)
    row = session.execute(wanted.with_for_update()).one_or_none()
    if row is None:
        return None
    job = LockedJob._make(row)
    current = JobState(job.state)
    if current in already:
        return current
    if current not in targets:
        raise WrongState(current)
    target = targets[current]
    values: dict[str, Any] = {"not_before": 0.0, "last_woken_at": 0.0} if target is JobState.QUEUED else {}
    move(session, job.id, job.fence, current, target, ENDINGS.get(target, message), **values)
    return target
