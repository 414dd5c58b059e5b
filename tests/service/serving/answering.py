"""A worker's chat beside the API under test: a thread of this process, and the fake serving engine."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from service.platform.db import Database
from service.serving import repository
from service.settings import Settings
from tests.service.embedded import ROOT
from tests.support.forking import client as forking
from tests.support.servers import wait_until
from worker.attempt.worker import Worker
from worker.serving.chat import answer_until

CHAT_WORKER = f"{socket.gethostname()}:chat"


def faked(settings: Settings) -> Settings:
    """The settings with the fake serving engine."""
    fake = {"chat_module": "tests.support.fake_serving", "engine_python": forking.engine_python()}
    return settings.model_copy(update={**fake, "poll_seconds": 0.02})


@contextmanager
def answering(settings: Settings, name: str = CHAT_WORKER) -> Iterator[Worker]:
    """Ready when this is entered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        with _thread(settings, name) as worker:
            yield worker


@contextmanager
def _thread(settings: Settings, name: str) -> Iterator[Worker]:
    worker = Worker.open(faked(settings), name)
    thread = threading.Thread(target=answer_until, args=(worker.draining, worker))
    thread.start()
    try:
        wait_until(lambda: num_workers(worker.database) > 0, what="a worker answers")
        yield worker
    finally:
        worker.draining.set()
        thread.join()
        worker.close()


def num_workers(database: Database) -> int:
    with database.reading() as session:
        return len(repository.live_workers(session))


def num_served(database: Database) -> int:
    """Models whose servers are registered."""
    with database.reading() as session:
        return len(repository.served(session))
