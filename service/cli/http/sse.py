"""Server-sent events: a job's live stream, resumed after lost connections, and OpenAI's chat stream.

Boundary: reads the streams; the caller interprets the events.
"""

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from service.cli.http.client import JOBS, TERMINAL, Client
from service.cli.terminal.errors import CommandError

FIRST_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 10.0
GIVE_UP_SECONDS = 600.0
TRANSIENT = frozenset({"unreachable", "unavailable", "internal_error", "500", "502", "503", "504"})
"""Error codes that may disappear when the service or its database has restarted."""


@dataclass(frozen=True)
class StreamEvent:
    """One server-sent event with its data parsed."""

    id: str
    name: str
    data: dict[str, Any]


def follow(client: Client, job_id: str) -> Iterator[StreamEvent]:
    """The job's events, each once, until its terminal state.

    Reconnects after a growing delay. Raises CommandError if the service refuses the request or is
    unreachable for ten minutes.
    """
    last_id, delay_seconds, away_since = "", FIRST_DELAY_SECONDS, None
    while True:
        try:
            with _connection(client, job_id, last_id) as events:
                away_since = None  # a job may have no event for hours
                for event in events:
                    delay_seconds = FIRST_DELAY_SECONDS
                    last_id = event.id or last_id
                    yield event
            if client.get(f"{JOBS}/{job_id}")["status"] in TERMINAL:
                return
        except (httpx.TransportError, CommandError) as error:
            if isinstance(error, CommandError) and error.code not in TRANSIENT:
                raise
            away_since = away_since or time.monotonic()
        if away_since and time.monotonic() - away_since > GIVE_UP_SECONDS:
            raise CommandError(f"{client.url} was unreachable for {GIVE_UP_SECONDS:g} s", code="unreachable")
        time.sleep(delay_seconds)
        delay_seconds = min(2 * delay_seconds, MAX_DELAY_SECONDS)


@contextmanager
def _connection(client: Client, job_id: str, last_id: str) -> Iterator[Iterator[StreamEvent]]:
    """The events of one connection."""
    headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id} if last_id else {})
    with client.streaming(f"{JOBS}/{job_id}/stream", headers=headers) as response:
        yield parse(response.iter_bytes())


def parse(chunks: Iterable[bytes]) -> Iterator[StreamEvent]:
    """Server-sent events from a byte stream; comments and unfinished events are dropped."""
    name, identifier, data = "message", "", list[str]()
    for line in _lines(chunks):
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield StreamEvent(identifier, name, json.loads("\n".join(data)))
            name, data = "message", []
        elif field == "data":
            data.append(value)
        elif field == "event":
            name = value
        elif field == "id":
            identifier = value


def documents(chunks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The documents of an OpenAI stream up to `[DONE]`. Raises CommandError if it ends earlier."""
    for line in _lines(chunks):
        if line == "data: [DONE]":
            return
        if line.startswith("data: "):
            document = json.loads(line.removeprefix("data: "))
            yield document
            if "error" in document:
                return
    raise CommandError("the response was cut off", code="unreachable")


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Lines end at LF or CRLF only: httpx also splits at Unicode's separators, which data may contain."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode()
