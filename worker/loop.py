"""The polling worker, which is the whole worker of the embedded mode: helpers beside, jobs one by one."""

from __future__ import annotations

import signal
from contextlib import closing
from functools import partial

import structlog
from sqlalchemy.exc import SQLAlchemyError

from service.ops.helper_heartbeats import CHAT
from service.settings import Settings
from worker.attempt.attempt import Worker
from worker.attempt.runner import run_job
from worker.launchers.warm_pool import WarmPool
from worker.serving.chat import answer_until
from worker.supervision import Helper, supervised
from worker.sweeper import maintenance

logger = structlog.get_logger()


def drain_on_signals(worker: Worker) -> None:
    """On SIGTERM and SIGINT the running job is released after a checkpoint."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_signal: worker.draining.set())


def work(worker: Worker) -> None:
    """Run jobs and helpers until drained."""
    with (
        supervised(_helpers(worker), worker.draining),
        closing(warm_pool(worker.settings, keep_warm=True)) as engines,
    ):
        while not worker.draining.is_set():
            worker.touch()
            if not try_job(worker, engines):
                engines.warm_up()
                worker.draining.wait(worker.settings.poll_seconds)


def work_once(worker: Worker) -> None:
    """Run at most one job, without helpers."""
    with closing(warm_pool(worker.settings, keep_warm=False)) as engines:
        try_job(worker, engines)


def warm_pool(settings: Settings, *, keep_warm: bool) -> WarmPool:
    return WarmPool(settings, keep_warm=keep_warm and settings.warm_engine)


def try_job(worker: Worker, engines: WarmPool) -> bool:
    """Run a job. False: none is queued, or the database is unavailable."""
    try:
        return run_job(worker, engines)
    except SQLAlchemyError as error:
        logger.warning("no claim", error=type(error).__name__)
        return False


def _helpers(worker: Worker) -> dict[str, Helper]:
    helpers = maintenance(worker.database, worker.wakeups, worker.settings)
    if worker.settings.chat_models:
        helpers[CHAT] = partial(answer_until, worker=worker)
    return helpers
