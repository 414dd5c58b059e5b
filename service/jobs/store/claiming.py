"""The claim: takes the best queued job that a machine can run, under a new fence and a lease.

One conditional UPDATE, whose statements are built once. Only the database's clock decides.
Boundary: the transitions of a claimed job are in `queue.py`.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

from sqlalchemy import Integer, Select, bindparam, func, select
from sqlalchemy.sql.dml import ReturningUpdate

from service.jobs.model.states import HELD, JobState
from service.jobs.store import history
from service.jobs.store.machines import satisfied_by
from service.jobs.store.transitions import JOBS, LEASES, is_in
from service.platform.clock import db_now
from service.platform.db import Executor, is_postgresql

CLAIM_PAUSE = "5s"
"""How long a worker that is stopped during its claim can block the claims of others."""
CLAIMS_LOCK = 0x6772706F
"""Key of a PostgreSQL advisory lock; the keys of tenants are 64 bits of a digest."""


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
