"""Answers requests to talk to a model: `python -m worker.serving.chat`, or a thread of a polling worker.

Of a home's processes one answers; the others wait for its place.
Boundary: the process and its end; what answering is, is `desk.py`'s.
"""

from __future__ import annotations

import fcntl
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog
from sqlalchemy.exc import SQLAlchemyError

from service.platform import logs
from service.settings import Settings
from worker.attempt.attempt import Flag, Worker, worker_name
from worker.serving.chat_dispatcher import BEAT_SECONDS, Desk

logger = structlog.get_logger()


def answer_until(stopping: Flag, worker: Worker) -> None:
    """Answers until then, whatever happens to the database; waits where another process of this home does."""
    while worker.settings.chat_models and not stopping.is_set():
        with only_one(worker.settings.home) as is_first:
            if is_first:
                _answer(stopping, worker)
            else:
                stopping.wait(BEAT_SECONDS)


def _answer(stopping: Flag, worker: Worker) -> None:
    desk = Desk(worker)
    try:
        while not stopping.is_set():
            try:
                desk.round()
            except SQLAlchemyError as error:
                logger.warning("nothing answered", error=type(error).__name__)
                stopping.wait(1.0)
        desk.leave()
    except SQLAlchemyError as error:
        logger.warning("did not take leave", error=type(error).__name__)  # its lease says it in time
    finally:
        desk.samplers.close_all()


@contextmanager
def only_one(home: Path) -> Iterator[bool]:
    """Whether this process is the one of the home that answers; the kernel frees the lock."""
    with (home / "chat.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def main() -> None:
    """A process that only answers, until SIGTERM or SIGINT."""
    settings = Settings()
    logs.own_process(settings.log_level)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_signal: stopping.set())
    worker = Worker.open(settings, worker_name())
    logger.info("answering", models=settings.chat_models)
    answer_until(stopping, worker)
    worker.close()


if __name__ == "__main__":
    main()
