"""Puts lost jobs back and rings again for those that wait: `python -m worker.sweeper`. Any number may run.

Beside a worker (`--beside-worker`) it also says in each round what its machine offers. Alone it says nothing:
its machine would be taken for one with a worker.
"""

from __future__ import annotations

import argparse
import signal
import socket
import threading
from contextlib import ExitStack
from dataclasses import replace

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from grpo_engine.process.fault_points import fault_point
from service.jobs.store import sweeping
from service.jobs.store.machines import Machine, announce, of_this_machine, offered_to, tell_of_sandbox
from service.jobs.store.sink_packages import installed_sinks
from service.jobs.store.wakeups import Wakeups
from service.platform import logs
from service.platform.db import Database, connect
from service.settings import Settings
from worker.attempt.attempt import Flag
from worker.sinks.keeper import keeping
from worker.webhook_sender import sending

logger = structlog.get_logger()


def sweep_once(
    database: Database, wakeups: Wakeups, settings: Settings, *, has_worker: bool = True
) -> list[sweeping.Swept]:
    """One round. Raises SQLAlchemyError while the database is away."""
    with database.transaction() as session:
        swept = sweeping.sweep(
            session,
            backoff_seconds=settings.retry_backoff_seconds,
            max_failures=settings.max_attempts_without_checkpoint,
        )
    fault_point("sweep.committed")
    with database.transaction() as session:
        if has_worker:
            _announce(session, settings)
        pools = sweeping.due_pools(session)
    fault_point("sweep.rung")
    for pool in pools:
        wakeups.send(pool)
    for found in swept:
        about = {"tenant": found.tenant, "attempt": found.attempt, "fence": found.fence}
        logger.warning("lease expired", job=found.job_id, state=found.state, worker=found.worker, **about)
    return swept


def _announce(session: Session, settings: Settings) -> None:
    """What jobs may count on here."""
    offered = of_this_machine(unsafe_allowed=settings.allows_unsafe)
    machine = Machine(offered_to(session, offered), settings.gpus)
    if machine.capabilities != offered:
        logger.error("UNSAFE: GRPO_UNSAFE_GRADERS is for one tenant, there are more: nothing is offered")
    machine = replace(machine, capabilities=machine.capabilities | installed_sinks())
    announce(session, socket.gethostname()[:128], settings.pool, machine)


def sweep_until(
    stopping: Flag, database: Database, wakeups: Wakeups, settings: Settings, *, has_worker: bool = True
) -> None:
    """A round every `sweep_seconds`, whatever happens to the database; beside it webhooks are sent, and
    beside a worker metrics go to their sinks."""
    with ExitStack() as beside:
        beside.enter_context(sending(stopping, database, settings))
        if has_worker:
            tell_of_sandbox(settings)
            beside.enter_context(keeping(stopping, database, settings))
        while not stopping.is_set():
            try:
                sweep_once(database, wakeups, settings, has_worker=has_worker)
            except SQLAlchemyError as error:
                logger.warning("sweep failed", error=type(error).__name__)
            stopping.wait(settings.sweep_seconds)


def main() -> None:
    """A process that only sweeps, until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="worker.sweeper", description=__doc__)
    parser.add_argument("--beside-worker", action="store_true", help="a worker runs on this machine")
    given = parser.parse_args()
    settings = Settings()
    logs.own_process(settings.log_level)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_signal: stopping.set())
    logger.info("sweeping", every_seconds=settings.sweep_seconds, beside_worker=given.beside_worker)
    database = connect(settings)
    sweep_until(stopping, database, Wakeups(settings), settings, has_worker=given.beside_worker)
    database.engine.dispose()


if __name__ == "__main__":
    main()
