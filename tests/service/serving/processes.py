"""An application behind a real uvicorn."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from tests.support.servers import wait_until


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """Its URL, on a free port."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, name="uvicorn")
    thread.start()
    wait_until(lambda: server.started or not thread.is_alive(), what="uvicorn started")
    assert server.started, "uvicorn did not start"
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()
