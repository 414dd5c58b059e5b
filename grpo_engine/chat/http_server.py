"""Serves an HTTP application in a thread."""

import errno
import socket
import threading
from collections.abc import Iterable

import uvicorn
from fastapi import FastAPI

MAX_CONNECTIONS = 256
CLOSE_SECONDS = 1
"""Time that open requests have to end after `close`."""


class HttpServer:
    """Listens at `host`, a name or an address of this machine, until `close`."""

    def __init__(
        self,
        app: FastAPI,
        host: str,
        *,
        ports: Iterable[int] = (0,),
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        """`ports`: the first free one is used; 0 is any. Raises OSError if the address is not one of this
        machine or no port is free."""
        listening = _listening(host, ports)
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="none")
        config.limit_concurrency = max_connections
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


def _listening(host: str, ports: Iterable[int]) -> socket.socket:
    family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
    for port in ports:
        try:
            return socket.create_server((host, port), family=family)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, "all of the ports are in use")
