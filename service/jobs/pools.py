"""Pools that want a look: jobs wait, and nobody takes them.

A worker that answers its broker's ping and consumes nothing is seen here and nowhere else: a job waits that
its machine could run, and fewer jobs run than machines are there.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import bindparam, case, func, select
from sqlalchemy.orm import Session

from service.clock import db_now
from service.jobs.backlog import IS_QUEUED, MAX_PLACE
from service.jobs.capabilities import Machine, announced
from service.jobs.statements import is_in
from service.jobs.states import HELD
from service.models import Job, WorkerHost

LIVE_SECONDS = 60.0
MISSED_SWEEPS = 3
"""A machine speaks in each round of its sweeper; with so many missed, in `LIVE_SECONDS` at least, it is gone.
"""
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
class PoolReport:
    pool: str
    needs: tuple[Need, ...]
    """Of the first 1,000 jobs in the order of their claims. Jobs that nobody can run come to stand there."""
    known: tuple[Machine, ...]
    """That spoke within the last hour."""
    num_live: int
    """Machines that are there now."""
    num_held: int
    """Jobs that run."""
    seen_seconds: float | None
    """Since a machine of the pool last spoke; None: none did for an hour."""

    @property
    def warnings(self) -> list[str]:
        """Which of `WARNINGS` hold."""
        unrunnable = [need for need in self.needs if not any(map(need.met_by, self.known))]
        waiting = [need for need in self.needs if need not in unrunnable]
        is_stuck = any(need.waited_seconds > IDLE_SECONDS for need in waiting)
        found = {
            NO_LIVE_WORKER: bool(self.needs) and not self.num_live,
            IDLE_WORKER: is_stuck and self.num_held < self.num_live,
            UNRUNNABLE_JOBS: bool(unrunnable) and bool(self.known),
        }
        return [name for name, holds in found.items() if holds]


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
_IS_LIVE = WorkerHost.seen_at >= db_now() - bindparam("live_seconds")
_HOSTS = select(
    WorkerHost.pool, func.sum(case((_IS_LIVE, 1), else_=0)), db_now() - func.max(WorkerHost.seen_at)
).group_by(WorkerHost.pool)


def pool_reports(session: Session, sweep_seconds: float) -> list[PoolReport]:
    """Every pool with waiting jobs or machines, by name."""
    live_seconds = max(LIVE_SECONDS, MISSED_SWEEPS * sweep_seconds)
    hosts = {row[0]: row for row in session.execute(_HOSTS, {"live_seconds": live_seconds})}
    held = dict(session.execute(_HELD).all())
    pools = sorted({*hosts, *session.scalars(_QUEUED_POOLS)})
    found = []
    for pool in pools:
        _, num_live, seen_seconds = hosts.get(pool, (pool, 0, None))
        found.append(_report(session, pool, num_live, seen_seconds, held.get(pool, 0)))
    return found


def _report(
    session: Session, pool: str, num_live: int, seen_seconds: float | None, num_held: int
) -> PoolReport:
    rows = session.execute(_NEEDS, {"of_pool": pool})
    needs = tuple(
        Need(Machine(frozenset(capabilities.split()), gpus), num_jobs, max(0.0, seconds))
        for capabilities, gpus, num_jobs, seconds in rows
    )
    return PoolReport(pool, needs, tuple(announced(session, pool)), int(num_live), num_held, seen_seconds)
