"""The API over HTTP for the commands: one base URL, one key, errors as `CommandError`.

Only requests that are safe to repeat are repeated: reads, and a create with an idempotency key.
"""

import io
import os
import re
import ssl
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import httpx

from service.cli.terminal.errors import CommandError

DEFAULT_URL = "http://127.0.0.1:8000"
JOBS = "/v1/fine_tuning/jobs"
PROBES = "/v1/fine_tuning/probes"
TERMINAL = frozenset({"succeeded", "failed", "cancelled"})
POLL_SECONDS = 0.5
RETRIES = 3
FIRST_RETRY_SECONDS = 0.5
RETRIED_STATUSES = frozenset({429, 502, 503, 504})
MAX_RETRY_SECONDS = 30.0
_KEY = re.compile(r"[!-~]+")
HINTS: dict[int | str, str] = {
    401: "give a key with --api-key or GRPO_API_KEY; `grpo keys create --tenant NAME` makes one",
    "insufficient_scope": "`grpo keys create --tenant NAME` makes a key with the scopes read and write",
    429: "wait a moment, or let running jobs end",
}

Document = dict[str, Any]
Verify = ssl.SSLContext | bool
"""Certificates to trust; True: those of httpx or, if set, of `SSL_CERT_FILE`."""


class Client:
    """One connection pool to one service. Use as a context manager."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self.url = url.rstrip("/")
        if api_key and not _KEY.fullmatch(api_key):  # an error of the request would show the key
            message = "no API key has spaces or special characters, and the given one does"
            raise CommandError(message, code="invalid_api_key", param="api_key")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # enough for a live stream, which sends comments at shorter intervals
        timeout = httpx.Timeout(60, connect=5)
        # to load the machine's certificates takes 20 ms; without TLS they are not used
        is_plain = self.url.startswith("http://")
        verify: Verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if is_plain else True
        options: dict[str, Any] = {"headers": headers, "timeout": timeout, "verify": verify}
        try:
            self._http = httpx.Client(base_url=self.url, transport=direct(self.url, verify), **options)
        except (ImportError, ValueError) as error:
            raise CommandError(f"cannot use the proxy of this environment: {error}") from error
        except httpx.InvalidURL as error:
            hint = f"give one with --url or GRPO_URL, such as {DEFAULT_URL}"
            raise CommandError(f"{self.url} is not a URL: {error}", param="url", hint=hint) from error
        self._answered = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def get(self, path: str, **params: Any) -> Document:
        """Reads a JSON document; retried on a lost connection and on 429, 502, 503 and 504."""
        return self._request("GET", path, retries=RETRIES, params=_without_none(params))

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

    def awaited(self, path: str, found: Document, show: Callable[[Document], None]) -> Document:
        """Polls `path` until its status is terminal; `show` receives each document before that."""
        while found["status"] not in TERMINAL:
            show(found)
            time.sleep(POLL_SECONDS)
            found = self.get(path)
        return found

    def create(self, path: str, body: Document) -> Document:
        """POST with an idempotency key: retried, and creates at most once."""
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        return self._request("POST", path, retries=RETRIES, json=body, headers=headers)

    def post(self, path: str, body: Document | None = None) -> Document:
        """POST, sent once."""
        return self._request("POST", path, json=body)

    def patch(self, path: str, body: Document) -> Document:
        """PATCH, sent once."""
        return self._request("PATCH", path, json=body)

    def delete(self, path: str) -> Document:
        """DELETE, sent once."""
        return self._request("DELETE", path)

    def upload(
        self, path: Path, sent: Callable[[int, int], None] = lambda num_bytes, total: None
    ) -> Document:
        """Uploads a dataset while reading it from disk; `sent` receives the bytes so far and the total."""
        form = {"purpose": "fine-tune"}
        timeout = httpx.Timeout(600, connect=5)
        try:
            with _CountedFile(path, sent) as content:
                files = {"file": (path.name, content)}
                return self._request("POST", "/v1/files", data=form, files=files, timeout=timeout)
        except OSError as error:
            raise CommandError(f"{path}: {error.strerror}") from error

    @contextmanager
    def streaming(
        self, path: str, *, headers: Mapping[str, str], body: Document | None = None, **params: Any
    ) -> Iterator[httpx.Response]:
        """An open response with a successful status; the request is a POST if there is a body.

        Raises CommandError; httpx.TransportError if the connection is lost.
        """
        method = "GET" if body is None else "POST"
        given = _without_none(params)
        with self._http.stream(method, path, params=given, headers=headers, json=body) as response:
            if response.is_error:
                response.read()
            _check(response)
            yield response

    def _request(self, method: str, path: str, *, retries: int = 0, **options: Any) -> Document:
        delay_seconds = FIRST_RETRY_SECONDS
        while True:
            retry_after = ""
            try:
                response = self._http.request(method, path, **options)
            except httpx.TransportError as error:
                # a service that has responded before is probably being restarted
                is_absent = isinstance(error, httpx.ConnectError) and not self._answered
                if is_absent or not retries:
                    raise self._unreachable(error) from error
            else:
                self._answered = True
                is_final = response.headers.get("x-should-retry") == "false"
                if not retries or is_final or response.status_code not in RETRIED_STATUSES:
                    return self._document(response)
                retry_after = response.headers.get("retry-after", "")
            given = min(float(retry_after), MAX_RETRY_SECONDS) if retry_after.isdigit() else None
            time.sleep(delay_seconds if given is None else given)
            delay_seconds *= 2
            retries -= 1

    def _unreachable(self, error: httpx.TransportError) -> CommandError:
        return CommandError(
            f"no response from {self.url}: {error or type(error).__name__}",
            code="unreachable",
            hint="`grpo up` starts the service here; --url or GRPO_URL selects another one",
        )

    def _document(self, response: httpx.Response) -> Document:
        _check(response)
        try:
            document: Document = response.json()
        except ValueError as error:
            raise CommandError(f"{self.url} does not return JSON: is it this service?") from error
        return document


def direct(url: str, verify: Verify = True) -> httpx.HTTPTransport | None:
    """A transport without the environment's proxy, which cannot reach this machine's loopback; None for a URL
    of another machine."""
    is_here = re.match(r"https?://(127\.[\d.]+|localhost|\[::1\])(?=[:/]|$)", url)
    return httpx.HTTPTransport(verify=verify) if is_here else None


class _CountedFile(io.FileIO):
    """A file that reports how much of it has been read."""

    def __init__(self, path: Path, sent: Callable[[int, int], None]) -> None:
        super().__init__(path)
        self._num_bytes = os.fstat(self.fileno()).st_size
        self._sent = sent

    def read(self, size: int | None = -1, /) -> Any:
        piece = super().read(-1 if size is None else size)
        self._sent(self.tell(), self._num_bytes)
        return piece


def _without_none(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}


def _check(response: httpx.Response) -> None:
    """Raises the API's error as a CommandError."""
    if response.is_success:
        return
    try:
        error = response.json()["error"]
        message, code, param = error["message"], error.get("code"), error.get("param")
    except (ValueError, KeyError, TypeError):
        message, code, param = response.reason_phrase, None, None
    hint = HINTS.get(code) or HINTS.get(response.status_code)
    if response.status_code >= 500 and (request_id := response.headers.get("x-request-id")):
        hint = f"the service's log has more under request id {request_id}"
    raise CommandError(message, code=code or str(response.status_code), param=param, hint=hint)
