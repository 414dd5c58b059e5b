"""The polling worker: claims, runs, sweeps beside it, drains on SIGTERM. Embedded mode's whole worker."""

from __future__ import annotations

import signal
import threading
from contextlib import closing

import structlog
from sqlalchemy.exc import SQLAlchemyError

from worker.attempt.attempt import Worker
from worker.attempt.runner import run_job
from worker.launchers.warm_pool import Engines
from worker.serving.chat import answer_until
from worker.sweeper import sweep_until

logger = structlog.get_logger()
LEAVE_SECONDS = 5.0
"""For answers on their way to be told that they end."""


def drain_on_signals(worker: Worker) -> None:
    """SIGTERM and SIGINT let the running job go after a checkpoint."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_signal: worker.draining.set())


def work(worker: Worker, *, once: bool = False) -> None:
    """Until drained; `once`: until the queue is empty or one job was run."""
    sweeper = threading.Thread(
        target=sweep_until,
        args=(worker.draining, worker.database, worker.wakeups, worker.settings),
        name="sweeper",
        daemon=True,
    )
    chat = threading.Thread(target=answer_until, args=(worker.draining, worker), name="chat", daemon=True)
    if not once:
        sweeper.start()
        chat.start()
    with closing(Engines(worker.settings, keep_warm=worker.settings.warm_engine and not once)) as engines:
        while not worker.draining.is_set():
            worker.touch()
            ran = try_job(worker, engines)
            if once:
                return
            if not ran:
                engines.prepare()
                worker.draining.wait(worker.settings.poll_seconds)
    sweeper.join(timeout=worker.settings.sweep_seconds)
    chat.join(timeout=LEAVE_SECONDS)


def try_job(worker: Worker, engines: Engines) -> bool:
    """Run a job if there is one; while the database is away there is none."""
    try:
        return run_job(worker, engines)
    except SQLAlchemyError as error:
        logger.warning("no claim", error=type(error).__name__)
        return False
