"""A job's live stream as an iterator that survives lost connections.

Boundary: server-sent events over the client, resumed by `Last-Event-ID`; what they mean is the caller's.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from service.cli.http.client import JOBS, Client
from service.cli.terminal.errors import CommandError

FIRST_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 10.0
GIVE_UP_SECONDS = 600.0
TERMINAL = frozenset({"succeeded", "failed", "cancelled"})
PASSING = frozenset({"unreachable", "500", "502", "503", "504"})
"""Codes of errors that a restarted service no longer has."""


@dataclass(frozen=True)
class StreamEvent:
    """One server-sent event with its data parsed."""

    id: str
    name: str
    data: dict[str, Any]


def follow(client: Client, job_id: str, last_id: str | None = None) -> Iterator[StreamEvent]:
    """Events after `last_id`, none twice, until the job's terminal state.

    A lost connection is opened again after a growing delay. Raises CommandError where the service refuses,
    or stays away for ten minutes.
    """
    patience = _Patience(client.url)
    while True:
        try:
            for event in _connection(client, job_id, last_id):
                patience.restore()
                last_id = event.id or last_id
                yield event
            if client.get(f"{JOBS}/{job_id}")["status"] in TERMINAL:
                return
        except (httpx.TransportError, CommandError) as error:
            if isinstance(error, CommandError) and error.code not in PASSING:
                raise
        patience.wait()


class _Patience:
    """How long to wait before the next connection, and when to give up."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.restore()

    def restore(self) -> None:
        self._delay_seconds = FIRST_DELAY_SECONDS
        self._gives_up_at = time.monotonic() + GIVE_UP_SECONDS

    def wait(self) -> None:
        if time.monotonic() > self._gives_up_at:
            raise CommandError(f"{self.url} was away for {GIVE_UP_SECONDS:g} s", code="unreachable")
        time.sleep(self._delay_seconds)
        self._delay_seconds = min(2 * self._delay_seconds, MAX_DELAY_SECONDS)


def _connection(client: Client, job_id: str, last_id: str | None) -> Iterator[StreamEvent]:
    headers = {"Accept": "text/event-stream"}
    if last_id:
        headers["Last-Event-ID"] = last_id
    with client.streaming(f"{JOBS}/{job_id}/stream", headers=headers) as response:
        yield from parse(response.iter_bytes())


def parse(chunks: Iterable[bytes]) -> Iterator[StreamEvent]:
    """Server-sent events from a byte stream; comments and unfinished events are dropped.

    Lines end at LF or CRLF only, so that other separators of Unicode may stand in the data.
    """
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
    """What a stream of OpenAI's says, up to its `[DONE]`. Raises CommandError where it ends before that."""
    for line in _lines(chunks):
        if line == "data: [DONE]":
            return
        if line.startswith("data: "):
            document = json.loads(line.removeprefix("data: "))
            yield document
            if "error" in document:
                return
    raise CommandError("the answer was cut off", code="unreachable")


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode()
