"""Connections to checked addresses, under one deadline for everything on them.

The host that httpcore passes is used for TLS and the Host header only. This module loads httpcore, so
`web.py` imports it when it is needed.
"""

import ssl
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import httpcore
import httpx

from grpo_engine.process.deadline import Deadline

CONNECT_SECONDS = 5.0
MAX_ADDRESSES = 4
WRITE_BYTES = 16_384


def _left(deadline: Deadline) -> float:
    """Seconds until the deadline, always above 0. Raises httpcore.TimeoutException once it has passed."""
    if (seconds := deadline.seconds_left) == 0:
        raise httpcore.TimeoutException("the deadline has passed")
    return seconds


class PinnedBackend(httpcore.NetworkBackend):
    """Connects to the given addresses in order, whatever host is requested."""

    def __init__(self, addresses: Sequence[str], deadline: Deadline) -> None:
        self.addresses = addresses[:MAX_ADDRESSES]
        self.deadline = deadline
        self.system = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        connecting = Deadline(min(CONNECT_SECONDS, _left(self.deadline)))
        for position, address in enumerate(self.addresses):
            seconds = _left(connecting) / (len(self.addresses) - position)
            try:
                stream = self.system.connect_tcp(address, port, seconds, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if position + 1 == len(self.addresses):
                    raise
            else:
                return _TimedStream(stream, self.deadline)
        raise httpcore.ConnectError("no address")


class _TimedStream(httpcore.NetworkStream):
    """A stream in which every wait ends at the deadline, even if the peer sends byte by byte."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: Deadline) -> None:
        self.stream = stream
        self.deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self.stream.read(max_bytes, _left(self.deadline))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), WRITE_BYTES):
            self.stream.write(buffer[start : start + WRITE_BYTES], _left(self.deadline))

    def close(self) -> None:
        self.stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        seconds = min(CONNECT_SECONDS, _left(self.deadline))
        return _TimedStream(self.stream.start_tls(ssl_context, server_hostname, seconds), self.deadline)

    def get_extra_info(self, info: str) -> Any:
        return self.stream.get_extra_info(info)


@lru_cache(maxsize=4)
def tls_context(certificates: str | None) -> ssl.SSLContext:
    """A context that trusts the public authorities, or those in the file `certificates`."""
    return ssl.create_default_context(cafile=certificates) if certificates else httpx.create_ssl_context()
