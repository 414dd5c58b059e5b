"""Answers chat and completion requests: `python -m worker.serving.chat`, or a thread of a polling worker.

One process on a host answers; the others stand by. Boundary: the process; `model_keeper.py` decides
which models are loaded, and requests go to their servers.
"""

import fcntl
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog
from sqlalchemy.exc import SQLAlchemyError

from service.ops.helper_heartbeats import CHAT, Heartbeat
from service.platform import logs
from service.platform.db import reason_of
from service.settings import settings_or_exit
from worker.attempt.worker import Worker, worker_name
from worker.serving.model_keeper import BEAT_SECONDS, ModelKeeper
from worker.supervision import Flag, run_rounds, stop_flag

logger = structlog.get_logger()


def answer_until(stopping: Flag, worker: Worker) -> None:
    """Answer until `stopping` is set; stand by while another process of this host answers."""
    heartbeat = Heartbeat(worker.database, worker.settings, CHAT)
    while not stopping.is_set():
        with only_one(worker.settings.home) as is_first:
            if is_first:
                _answer(stopping, worker, heartbeat)
            else:
                heartbeat.beat()
                stopping.wait(BEAT_SECONDS)
    heartbeat.leave()


def _answer(stopping: Flag, worker: Worker, heartbeat: Heartbeat) -> None:
    keeper = ModelKeeper(worker)
    try:
        run_rounds(stopping, heartbeat, keeper.round, pause_seconds=0.0)
        keeper.leave()
    except SQLAlchemyError as error:
        logger.warning("leases not released", error=reason_of(error))  # they expire
    finally:
        keeper.close()


@contextmanager
def only_one(home: Path) -> Iterator[bool]:
    """Whether this process holds the host's chat lock. The kernel releases it when the process dies.

    Its name contains the host's name, so that a frozen container does not keep others with the same home from
    answering.
    """
    with (home / f"chat.{socket.gethostname()}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def main() -> None:
    """Answer requests until SIGTERM or SIGINT."""
    settings = settings_or_exit()
    logs.own_process(settings.log_level)
    stopping = stop_flag()
    worker = Worker.open(settings, worker_name())
    logger.info("answering", models=settings.chat_models)
    answer_until(stopping, worker)
    worker.close()


if __name__ == "__main__":
    main()
