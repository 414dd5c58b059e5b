"""The API over HTTP for the commands: one base URL, one key, errors as `CommandError`.

Only what may be repeated is repeated: reads, and a create that carries an idempotency key.
"""

from __future__ import annotations

import io
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from service.cli.terminal.errors import CommandError

DEFAULT_URL = "http://127.0.0.1:8000"
JOBS = "/v1/fine_tuning/jobs"
ATTEMPTS = 4
RETRIED_STATUSES = frozenset({429, 502, 503, 504})
MAX_RETRY_SECONDS = 30.0
HINTS = {
    401: "give a key with --api-key or GRPO_API_KEY; `grpo keys create --tenant NAME` makes one",
    403: "this key may only read",
    429: "wait a moment, or let running jobs end",
}

Document = dict[str, Any]
Sent = Callable[[int, int], None]
"""Takes the bytes that were sent so far, and all of them."""


class Client:
    """One connection pool to one service. Use as a context manager."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # a live stream sends a comment more often than that; a dead host is known at once
        timeout = httpx.Timeout(60, connect=5)
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout)
        self._answered = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives its connections back."""
        self._http.close()

    def get(self, path: str, **params: Any) -> Document:
        """A JSON document; repeated on a lost connection and on 429, 502, 503, 504."""
        given = {name: value for name, value in params.items() if value is not None}
        return self._json(self._repeated("GET", path, params=given))

    def pages(self, path: str, limit: int, **params: Any) -> Iterator[Document]:
        """Up to `limit` items of a list, page after page."""
        after = None
        while limit > 0:
            page = self.get(path, after=after, limit=min(limit, 100), **params)
            yield from page["data"][:limit]
            limit -= len(page["data"])
            if not page["data"] or not page.get("has_more"):
                return
            after = page["data"][-1]["id"]

    def create(self, path: str, body: Document) -> Document:
        """POST that creates at most once, however often the connection is lost on the way."""
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        return self._json(self._repeated("POST", path, json=body, headers=headers))

    def post(self, path: str, body: Document | None = None) -> Document:
        """POST, sent once."""
        return self._json(self._send("POST", path, json=body))

    def delete(self, path: str) -> Document:
        """DELETE, sent once."""
        return self._json(self._send("DELETE", path))

    def upload(self, path: Path, sent: Sent | None = None, purpose: str = "fine-tune") -> Document:
        """The file as a multipart form; its content is read from disk while it is sent."""
        try:
            with _Counted(path, sent) as content:
                return self._json(
                    self._send(
                        "POST",
                        "/v1/files",
                        data={"purpose": purpose},
                        files={"file": (path.name, content)},
                        timeout=httpx.Timeout(600, connect=5),
                    )
                )
        except OSError as error:
            raise CommandError(f"{path}: {error.strerror}") from error

    @contextmanager
    def streaming(
        self, path: str, *, headers: Mapping[str, str], body: Document | None = None, **params: Any
    ) -> Iterator[httpx.Response]:
        """An open response whose status was checked; a POST's where there is a body.

        Raises httpx.TransportError where it breaks off.
        """
        given = {name: value for name, value in params.items() if value is not None}
        method = "GET" if body is None else "POST"
        with self._http.stream(method, path, params=given, headers=headers, json=body) as response:
            if response.is_error:
                response.read()
            _check(response)
            yield response

    def _repeated(self, method: str, path: str, **options: Any) -> httpx.Response:
        for attempt in range(1, ATTEMPTS):
            try:
                response = self._http.request(method, path, **options)
            except httpx.TransportError as error:
                # a service that never answered is not there; one that did is being restarted
                if isinstance(error, httpx.ConnectError) and not self._answered:
                    raise self._unreachable(error) from error
                time.sleep(_delay(attempt, None))
                continue
            self._answered = True
            if (
                response.status_code not in RETRIED_STATUSES
                or response.headers.get("x-should-retry") == "false"
            ):
                return response
            time.sleep(_delay(attempt, response.headers.get("retry-after")))
        return self._send(method, path, **options)

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **options)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: httpx.TransportError) -> CommandError:
        return CommandError(
            f"no answer from {self.url}: {error or type(error).__name__}",
            code="unreachable",
            hint="`grpo up` starts the service here; --url or GRPO_URL names another",
        )

    def _json(self, response: httpx.Response) -> Document:
        _check(response)
        try:
            document: Document = response.json()
        except ValueError as error:
            raise CommandError(f"{self.url} does not answer JSON: is it this service?") from error
        return document


class _Counted(io.FileIO):
    """A file that tells how far it is read."""

    def __init__(self, path: Path, sent: Sent | None) -> None:
        super().__init__(path)
        self._num_bytes = os.fstat(self.fileno()).st_size
        self._sent = sent

    def read(self, size: int | None = -1, /) -> Any:
        piece = super().read(-1 if size is None else size)
        if self._sent is not None:
            self._sent(self.tell(), self._num_bytes)
        return piece


def _delay(attempt: int, retry_after: str | None) -> float:
    if retry_after and retry_after.isdigit():
        return min(float(retry_after), MAX_RETRY_SECONDS)
    return 0.25 * 2.0**attempt


def _check(response: httpx.Response) -> None:
    """Raises the API's error as a CommandError."""
    if response.is_success:
        return
    try:
        error = response.json()["error"]
        message, code, param = error["message"], error.get("code"), error.get("param")
    except (ValueError, KeyError, TypeError):
        message, code, param = response.reason_phrase, None, None
    hint = HINTS.get(response.status_code)
    if response.status_code >= 500 and (request_id := response.headers.get("x-request-id")):
        hint = f"the service's log has more under request id {request_id}"
    raise CommandError(message, code=code or str(response.status_code), param=param, hint=hint)
