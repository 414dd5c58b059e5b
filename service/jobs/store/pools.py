"""Pools that want a look: jobs wait, and nobody takes them.

A worker that answers its broker's ping and consumes nothing is seen here and nowhere else: a job waits that
its machine could run, and fewer jobs run than machines are there.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import bindparam, case, func, select
from sqlalchemy.orm import Session

from service.jobs.model.states import HELD
from service.jobs.store.backlog import IS_QUEUED, MAX_PLACE
from service.jobs.store.machines import KNOWN_SECONDS, Machine
from service.jobs.store.transitions import is_in
from service.platform.clock import db_now
from service.platform.tables.core import Job, WorkerHost

LIVE_SECONDS = 60.0
"""However short the rounds are, one that was heard so lately is there."""
MISSED_SWEEPS = 3
"""A machine speaks in each round of its sweeper; with so many missed it is gone."""
IDLE_SECONDS = 120.0
"""So long no job waits beside a worker that is free: the sweeper rings again every 30 s."""

NO_LIVE_WORKER = "no_live_worker"
IDLE_WORKER = "idle_worker"
UNRUNNABLE_JOBS = "unrunnable_jobs"
WARNINGS = {
    NO_LIVE_WORKER: "jobs wait, and no machine with a worker of this pool is there",
    IDLE_WORKER: "a job waits though fewer jobs run than machines are there: a worker does not consume",
    UNRUNNABLE_JOBS: "jobs wait that no known machine of this pool can run (sandbox or GPUs)",
}


@dataclass(frozen=True)
class Need:
    """Waiting jobs that ask for the same of their machine."""

    machine: Machine
    num_jobs: int
    waited_seconds: float
    """The longest, since it might have been claimed."""

    def met_by(self, machine: Machine) -> bool:
        return self.machine.capabilities <= machine.capabilities and self.machine.gpus <= machine.gpus


@dataclass(frozen=True)
class Host:
    """A machine with workers of the pool, that spoke within the last hour."""

    machine: Machine
    silent_seconds: float
    is_live: bool
    """Whether it is there now."""


@dataclass(frozen=True)
class PoolReport:
    pool: str
    needs: tuple[Need, ...]
    """Of the first 1,000 jobs in the order of their claims. Jobs that nobody can run come to stand there."""
    hosts: tuple[Host, ...]
    num_held: int
    """Jobs that run."""

    @property
    def num_live(self) -> int:
        return sum(host.is_live for host in self.hosts)

    @property
    def warnings(self) -> list[str]:
        """Which of `WARNINGS` hold."""
        unrunnable = [
            need for need in self.needs if not any(need.met_by(host.machine) for host in self.hosts)
        ]
        found = {
            NO_LIVE_WORKER: bool(self.needs) and not self.num_live,
            IDLE_WORKER: any(map(self._waits_in_vain, self.needs)),
            UNRUNNABLE_JOBS: bool(unrunnable) and bool(self.hosts),
        }
        return [name for name, holds in found.items() if holds]

    def _waits_in_vain(self, need: Need) -> bool:
        """One of the machines that could run it is free, even if all that runs here ran on those."""
        num_able = sum(host.is_live and need.met_by(host.machine) for host in self.hosts)
        return need.waited_seconds > IDLE_SECONDS and self.num_held < num_able


_SINCE = case((Job.not_before > Job.created_at, Job.not_before), else_=Job.created_at)
_HEAD = (
    select(Job.required_capabilities, Job.required_gpus, _SINCE.label("since"))
    .where(IS_QUEUED, Job.pool == bindparam("of_pool"))
    .order_by(Job.priority.desc(), Job.created_at)
    .limit(MAX_PLACE)
    .subquery()
)
_NEEDS = select(
    _HEAD.c.required_capabilities, _HEAD.c.required_gpus, func.count(), db_now() - func.min(_HEAD.c.since)
).group_by(_HEAD.c.required_capabilities, _HEAD.c.required_gpus)
_QUEUED_POOLS = select(Job.pool).where(IS_QUEUED).distinct()
_HELD = select(Job.pool, func.count()).where(is_in("jobs", *HELD)).group_by(Job.pool)
_HOSTS = select(
    WorkerHost.pool, WorkerHost.capabilities, WorkerHost.gpus, db_now() - WorkerHost.seen_at
).where(WorkerHost.seen_at >= db_now() - KNOWN_SECONDS)


def pool_reports(session: Session, sweep_seconds: float) -> list[PoolReport]:
    """Every pool with waiting jobs or machines, by name."""
    live_seconds = max(LIVE_SECONDS, MISSED_SWEEPS * sweep_seconds)
    hosts: dict[str, list[Host]] = {}
    for pool, capabilities, gpus, seconds in session.execute(_HOSTS):
        host = Host(_machine(capabilities, gpus), seconds, seconds <= live_seconds)
        hosts.setdefault(pool, []).append(host)
    held = dict(session.execute(_HELD).all())
    pools = sorted({*hosts, *session.scalars(_QUEUED_POOLS)})
    return [
        PoolReport(pool, _needs(session, pool), tuple(hosts.get(pool, ())), held.get(pool, 0))
        for pool in pools
    ]


def _needs(session: Session, pool: str) -> tuple[Need, ...]:
    rows = session.execute(_NEEDS, {"of_pool": pool})
    return tuple(
        Need(_machine(capabilities, gpus), num_jobs, max(0.0, seconds))
        for capabilities, gpus, num_jobs, seconds in rows
    )


def _machine(capabilities: str, gpus: int) -> Machine:
    return Machine(frozenset(capabilities.split()), gpus)
