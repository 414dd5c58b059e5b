"""The state of the queue: counts of jobs, places in the queue, pools that need attention.

A worker that responds to its broker's ping but takes no jobs is detected only here: a job that its machine
could run is waiting, and fewer jobs run than there are live machines. States are part of the statements'
text, so that every plan can use the partial indexes.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import ColumnElement, bindparam, case, func, select
from sqlalchemy.orm import Session

from service.jobs.model.states import HELD, TERMINAL, JobState
from service.jobs.store.machines import KNOWN_SECONDS, Machine
from service.jobs.store.transitions import IS_JOB, LEASES, is_in
from service.platform.clock import db_now
from service.platform.tables.core import Job
from service.platform.tables.workers import WorkerHost

MAX_PLACE = 1000
"""Places further back are not counted, because each poll would read the whole queue."""
IS_QUEUED = is_in("jobs", JobState.QUEUED)
IS_UNFINISHED = is_in("jobs", *(state for state in JobState if state not in TERMINAL))
_ORDER = (Job.priority.desc(), Job.created_at)
_PLACED = (
    select(Job.id, func.row_number().over(order_by=_ORDER).label("place"))
    .where(IS_QUEUED, Job.pool == bindparam("of_pool"))
    .order_by(*_ORDER)
    .limit(MAX_PLACE)
    .subquery()
)
_PLACES = select(_PLACED.c.id, _PLACED.c.place).where(_PLACED.c.id.in_(bindparam("ids", expanding=True)))


def num_unfinished(session: Session, tenant: str, limit: int | None = None) -> int:
    """Unfinished jobs of the tenant, counted up to `limit`."""
    return _num_jobs(session, tenant, IS_UNFINISHED, limit)


def is_at_running_limit(session: Session, tenant: str, max_running: int | None) -> bool:
    """Whether the tenant has `max_running` jobs on workers, so that its other jobs wait for them."""
    if max_running is None:
        return False
    return _num_jobs(session, tenant, is_in("jobs", *HELD), max_running) == max_running


def _num_jobs(session: Session, tenant: str, condition: ColumnElement[bool], limit: int | None) -> int:
    counted = select(Job.id).where(Job.tenant == tenant, condition).limit(limit).subquery()
    return session.scalar(select(func.count()).select_from(counted)) or 0


def queue_places(session: Session, jobs: Iterable[Job]) -> dict[str, int]:
    """Id → place in its pool's queue, from 1, in the order of claims; up to `MAX_PLACE`."""
    waiting: dict[str, list[str]] = {}
    for job in jobs:
        if job.state == JobState.QUEUED.value:
            waiting.setdefault(job.pool, []).append(job.id)
    places: dict[str, int] = {}
    for pool, ids in waiting.items():
        found = session.execute(_PLACES, {"of_pool": pool, "ids": ids})
        places |= dict(found.all())
    return places


class JobCount(NamedTuple):
    """The jobs of one state and pool."""

    state: str
    pool: str
    num_jobs: int
    num_attempts: int
    num_expired_leases: int
    """Expired leases so far: fence − attempt, because a claim increments both and a sweep only the fence."""


JOB_COUNTS = (
    select(Job.state, Job.pool, func.count(), func.sum(Job.attempt), func.sum(Job.fence - Job.attempt))
    .where(IS_JOB)
    .group_by(Job.state, Job.pool)
)
_OLDEST = select(Job.pool, db_now() - func.min(Job.created_at)).where(IS_QUEUED).group_by(Job.pool)
_OVERDUE = select(Job.pool, func.count()).where(LEASES.has_expired).group_by(Job.pool)
_CODE = func.coalesce(Job.failure["code"].as_string(), "unknown")
_CODES = select(_CODE, func.count()).where(is_in("jobs", JobState.FAILED), IS_JOB).group_by(_CODE)


def job_counts(session: Session) -> list[JobCount]:
    rows = session.execute(JOB_COUNTS)
    return [JobCount(state, pool, *map(int, numbers)) for state, pool, *numbers in rows]


def oldest_seconds(session: Session) -> dict[str, float]:
    """Pool → age of its oldest waiting job."""
    return {pool: max(0.0, seconds) for pool, seconds in session.execute(_OLDEST)}


def overdue_leases(session: Session) -> dict[str, int]:
    """Pool → jobs with an expired lease that are not yet requeued."""
    return dict(session.execute(_OVERDUE).all())


def failure_codes(session: Session) -> dict[str, int]:
    """Code → number of failed jobs. Reads whole rows, so do not call it for each scrape."""
    return dict(session.execute(_CODES).all())


LIVE_SECONDS = 60.0
"""A machine that reported within this time is live, even with shorter sweeper intervals."""
MISSED_SWEEPS = 3
"""A machine reports in each sweep; after this many missed sweeps it is not live."""
IDLE_SECONDS = 120.0
"""Longest normal wait for a free worker, because the sweeper resends wake-ups every 30 s."""

NO_WORKER = "no worker is running: start one with `grpo worker` or `celery -A worker.app worker`"
NO_WORKER_EMBEDDED = "no worker is running: start one with `grpo up` or `grpo worker`"
"""Reasons why a job waits."""
NO_LIVE_WORKER = "no_live_worker"
IDLE_WORKER = "idle_worker"
UNRUNNABLE_JOBS = "unrunnable_jobs"
WARNINGS = {
    NO_LIVE_WORKER: "jobs are waiting, and no machine with a worker of this pool is live",
    IDLE_WORKER: "a job is waiting, but fewer jobs run than there are live machines: a worker takes no jobs",
    UNRUNNABLE_JOBS: "jobs are waiting that no known machine of this pool can run (sandbox, GPUs or version)",
}


@dataclass(frozen=True)
class Need:
    """Waiting jobs with the same requirements."""

    machine: Machine
    num_jobs: int
    waited_seconds: float
    """Longest time that one of them has been claimable."""


@dataclass(frozen=True)
class Host:
    """A machine with workers of the pool that reported within the last hour."""

    name: str
    machine: Machine
    silent_seconds: float
    is_live: bool


@dataclass(frozen=True)
class PoolReport:
    pool: str
    needs: tuple[Need, ...]
    """Needs of the first 1,000 jobs in claim order, where jobs that no machine can run accumulate."""
    hosts: tuple[Host, ...]
    num_held: int
    """Number of running jobs."""

    @property
    def num_live(self) -> int:
        return sum(host.is_live for host in self.hosts)

    @property
    def warnings(self) -> list[str]:
        """The `WARNINGS` that apply."""
        machines = [host.machine for host in self.hosts]
        is_unrunnable = any(not any(each.meets(need.machine) for each in machines) for need in self.needs)
        applies = {
            NO_LIVE_WORKER: bool(self.needs) and not self.num_live,
            IDLE_WORKER: any(map(self._has_idle_machine, self.needs)),
            UNRUNNABLE_JOBS: is_unrunnable and bool(machines),
        }
        return [name for name in WARNINGS if applies[name]]

    def _has_idle_machine(self, need: Need) -> bool:
        """Whether fewer jobs run than there are live machines that could run it, so that one must be free."""
        num_able = sum(host.is_live and host.machine.meets(need.machine) for host in self.hosts)
        return need.waited_seconds > IDLE_SECONDS and self.num_held < num_able


_SINCE = case((Job.not_before > Job.created_at, Job.not_before), else_=Job.created_at)
_REQUIRED = (Job.required_capabilities, Job.required_gpus, Job.required_gpu_memory_gb)
_WAITING = (
    select(*_REQUIRED, _SINCE.label("since"))
    .where(IS_QUEUED, Job.pool == bindparam("of_pool"))
    .order_by(*_ORDER)
    .limit(MAX_PLACE)
    .subquery()
)
_KINDS = [_WAITING.c[column.key] for column in _REQUIRED]
_NEEDS = select(*_KINDS, func.count(), db_now() - func.min(_WAITING.c.since)).group_by(*_KINDS)
_QUEUED_POOLS = select(Job.pool).where(IS_QUEUED).distinct()
_NUM_HELD_OF_POOLS = select(Job.pool, func.count()).where(is_in("jobs", *HELD)).group_by(Job.pool)
_SILENT_SECONDS = db_now() - WorkerHost.seen_at
_HOSTS = select(
    WorkerHost.pool,
    WorkerHost.host,
    WorkerHost.capabilities,
    WorkerHost.gpus,
    WorkerHost.gpu_memory_gb,
    _SILENT_SECONDS,
)


def unserved_pools(session: Session, pools: set[str], sweep_seconds: float) -> set[str]:
    """Those of the pools in which no machine with a worker is live."""
    is_live = _live_seconds(sweep_seconds) >= _SILENT_SECONDS
    return pools - set(session.scalars(select(WorkerHost.pool).where(WorkerHost.pool.in_(pools), is_live)))


def _live_seconds(sweep_seconds: float) -> float:
    return max(LIVE_SECONDS, MISSED_SWEEPS * sweep_seconds)


def pool_reports(session: Session, sweep_seconds: float) -> list[PoolReport]:
    """Every pool with waiting jobs or machines, by name."""
    live_seconds = _live_seconds(sweep_seconds)
    hosts: defaultdict[str, list[Host]] = defaultdict(list)
    recent = session.execute(_HOSTS.where(_SILENT_SECONDS <= KNOWN_SECONDS))
    for pool, name, capabilities, gpus, memory, seconds in recent:
        machine = Machine.of_row(capabilities, gpus, memory)
        hosts[pool].append(Host(name, machine, seconds, seconds <= live_seconds))
    held = dict(session.execute(_NUM_HELD_OF_POOLS).all())
    return [
        PoolReport(pool, _needs(session, pool), tuple(hosts[pool]), held.get(pool, 0))
        for pool in sorted({*hosts, *session.scalars(_QUEUED_POOLS)})
    ]


def _needs(session: Session, pool: str) -> tuple[Need, ...]:
    rows = session.execute(_NEEDS, {"of_pool": pool})
    return tuple(
        Need(Machine.of_row(*required), num_jobs, max(0.0, seconds)) for *required, num_jobs, seconds in rows
    )
