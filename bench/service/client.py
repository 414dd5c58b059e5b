"""A cheap HTTP client, and an open loop, which sends requests when due, even if others are open.

Latency counts from the due time, so that a stalled server is charged for all requests that had to wait.
Boundary: HTTP/1.1 with Content-Length, as this service uses it; no redirects, no TLS.
"""

import asyncio
import itertools
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_CONNECTIONS = 200
REUSE_SECONDS = 3.0
"""Uvicorn closes connections that are idle for five seconds."""
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class Call:
    """One request."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Answer:
    """A response and its latency from the due time."""

    status: int
    body: bytes
    seconds: float


class Client:
    """Sends requests to the processes of a service in turn, as a proxy would.

    Keeps connections open, and opens more if all are busy.
    """

    def __init__(self, ports: Sequence[int], headers: Mapping[str, str]) -> None:
        self._turns = itertools.cycle(ports)
        self._head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._idle: dict[int, list[tuple[float, Connection]]] = {port: [] for port in ports}
        """Idle connections, with the time since when they are idle; the most recently used is last."""
        self._free = asyncio.Semaphore(MAX_CONNECTIONS)

    async def send(self, call: Call, due: float) -> Answer:
        """Send one request; `due` is on the monotonic clock."""
        async with self._free:
            port = next(self._turns)
            reader, writer = self._reusable(self._idle[port]) or await self.open(port)
            writer.write(self.request(call))
            status, body = await _read_answer(reader)
            self._idle[port].append((time.monotonic(), (reader, writer)))
        return Answer(status, body, time.monotonic() - due)

    def _reusable(self, idle: list[tuple[float, Connection]]) -> Connection | None:
        oldest = time.monotonic() - REUSE_SECONDS
        return idle.pop()[1] if idle and idle[-1][0] > oldest else None

    async def open(self, port: int | None = None) -> Connection:
        """A new connection to this process, or to the next in turn."""
        return await asyncio.open_connection("127.0.0.1", port or next(self._turns), limit=2**24)

    def request(self, call: Call) -> bytes:
        body = b"" if call.body is None else json.dumps(call.body).encode()
        head = f"{call.method} {call.path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{self._head}"
        if call.body is not None:
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        return head.encode() + b"\r\n" + body

    async def close(self) -> None:
        for _, (_, writer) in itertools.chain.from_iterable(self._idle.values()):
            writer.close()
            await writer.wait_closed()


async def _read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head[9:12])
    _, _, rest = head.lower().partition(b"content-length:")
    length = int(rest.partition(b"\r\n")[0]) if rest else 0
    return status, await reader.readexactly(length)


async def open_loop(
    client: Client, call_of: Callable[[int], Call], *, rate: float, seconds: float
) -> list[Answer]:
    """Send `rate` requests per second, each when due."""
    start = time.monotonic()
    tasks = []
    for number in range(max(1, round(rate * seconds))):
        due = start + number / rate
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        tasks.append(asyncio.create_task(client.send(call_of(number), due)))
    return await asyncio.gather(*tasks)


def figures_of(answers: Sequence[Answer], rate: float) -> dict[str, float]:
    """Percentiles of an open loop. Raises AssertionError if a request failed."""
    refused = [answer for answer in answers if answer.status != 200]
    assert not refused, f"{len(refused)} requests failed: {refused[0].status} {refused[0].body[:500]!r}"
    seconds = sorted(answer.seconds for answer in answers)
    named = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "max_ms": 1.0}
    shown = {name: round(1000 * percentile(seconds, share), 2) for name, share in named.items()}
    return {"requests": len(answers), "requests_per_second": rate, **shown}


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that is at least as large as `share` of all values."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
