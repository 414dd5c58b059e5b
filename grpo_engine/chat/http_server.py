"""Serves an HTTP application in a thread."""

import socket
import threading

import uvicorn
from fastapi import FastAPI

MAX_CONNECTIONS = 256
CLOSE_SECONDS = 1
"""Time that open requests have to end after `close`."""


class HttpServer:
    """Listens on a free port of `host`, a name or an address of this machine, until `close`."""

    def __init__(self, app: FastAPI, host: str) -> None:
        """Raises OSError if the address is not one of this machine."""
        family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, 0), family=family)
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="none")
        config.limit_concurrency = MAX_CONNECTIONS
        config.timeout_graceful_shutdown = CLOSE_SECONDS
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([listening],), name="http", daemon=True
        )
        self._thread.start()
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
