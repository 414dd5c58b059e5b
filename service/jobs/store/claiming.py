"""The claim: takes the best queued job that a machine can run, under a new fence and a lease.

One conditional UPDATE, whose statements are built once. Only the database's clock decides.
Boundary: the transitions of a claimed job are in `queue.py`.
"""

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, FromClause, Integer, Select, bindparam, func, select
from sqlalchemy.sql.dml import ReturningUpdate

from service.jobs.model.states import HELD, JobState
from service.jobs.store import history
from service.jobs.store.machines import satisfied_by
from service.jobs.store.transitions import JOBS, LEASES, is_in
from service.platform.clock import db_now
from service.platform.db import Executor, is_postgresql

CLAIM_PAUSE = "5s"
"""Longest time for which a worker that hangs during its claim can block other claims."""
OVERTAKEN_SECONDS = 600.0
"""Time for which smaller jobs may overtake a job that needs more GPUs than are free."""
CLAIMS_LOCK = 0x6772706F
"""Key of PostgreSQL's advisory lock of claims. The keys of tenants' locks are 64 bits of a digest."""


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
    validation_split: float | None
    suffix: str | None
    seed: int
    method: dict[str, Any]
    probe: dict[str, Any] | None
    export: dict[str, Any] | None
    required_capabilities: str
    required_gpus: int
    resources: dict[str, Any]
    checkpoint_step: int
    engine_sequence: int
    event_sequence: int


_HOLDING = JOBS.alias("holding")
_TENANTS_AT_LIMIT = (
    select(_HOLDING.c.tenant)
    .where(is_in("holding", *HELD))
    .group_by(_HOLDING.c.tenant)
    .having(func.count() >= bindparam("max_running", type_=Integer))
)


def _queued(jobs: FromClause, gpus: str, *, limited: bool) -> Iterator[ColumnElement[bool]]:
    """Conditions for queued jobs that this machine could run. `gpus`: parameter with the number of GPUs."""
    yield jobs.c.pool == bindparam("of_pool")
    yield jobs.c.not_before <= db_now()
    yield jobs.c.required_capabilities.in_(bindparam("satisfied", expanding=True))
    yield jobs.c.required_gpus <= bindparam(gpus)
    yield jobs.c.required_gpu_memory_gb <= bindparam("gpu_memory_gb")
    if limited:
        yield jobs.c.tenant.not_in(_TENANTS_AT_LIMIT)


def _eligible(*, limited: bool) -> Select[Any]:
    """Ids of the jobs that may be claimed, the best first.

    A job that needs more GPUs than are free does not wait forever: after `OVERTAKEN_SECONDS`, a machine with
    enough GPUs in total starts no younger job until enough are free.
    """
    candidate, larger = JOBS.alias("candidate"), JOBS.alias("larger")
    waiting_since = (
        select(func.min(larger.c.created_at))
        .where(bindparam("gpus") < bindparam("all_gpus"), larger.c.required_gpus > bindparam("gpus"))
        .where(is_in("larger", JobState.QUEUED), larger.c.created_at < db_now() - OVERTAKEN_SECONDS)
        .where(*_queued(larger, "all_gpus", limited=limited))
        .scalar_subquery()
    )
    return (
        select(candidate.c.id)
        .where(is_in("candidate", JobState.QUEUED), *_queued(candidate, "gpus", limited=limited))
        .where(candidate.c.created_at <= func.coalesce(waiting_since, candidate.c.created_at))
        .order_by(candidate.c.priority.desc(), candidate.c.created_at)
    )


_LOCK_CLAIMS = select(
    func.set_config("idle_in_transaction_session_timeout", bindparam("longest_pause"), True),
    func.pg_advisory_xact_lock(CLAIMS_LOCK),
)
"""Takes a lock until the transaction ends. The next statement sees everything committed before that.
A process that hangs meanwhile loses its connection after `longest_pause`, and with it the lock."""


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
CLAIM = _claiming(_eligible(limited=False))
CLAIM_LIMITED = _claiming(_eligible(limited=True))
"""`CLAIM` without the jobs of tenants that have `max_running` running jobs."""


def claim(
    session: Executor,
    *,
    pool: str,
    worker: str,
    lease_seconds: float,
    capabilities: Collection[str] = (),
    gpus: int = 0,
    all_gpus: int = 0,
    gpu_memory_gb: int = 0,
    max_running: int | None = None,
) -> ClaimedJob | None:
    """Claim the best eligible job: it is then running, under a new fence and a lease. None: nothing to do.

    Jobs that need other capabilities, or more or larger GPUs, are left for other workers.
    `all_gpus`: includes the GPUs of running jobs, for which a job may wait (`_eligible`).
    `max_running`: jobs of tenants with this many running jobs are left, too. Claims are then serialised,
    because two concurrent claims would both see the count before the other's job.
    """
    given: dict[str, Any] = {"of_pool": pool, "worker": worker, "lease_seconds": lease_seconds}
    given |= {"satisfied": satisfied_by(capabilities), "gpus": gpus, "all_gpus": all_gpus}
    given |= {"gpu_memory_gb": gpu_memory_gb}
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
