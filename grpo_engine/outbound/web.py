"""HTTP requests to URLs from users and the operator: the only code that sends them.

Requests go to https on public addresses, or what `AllowedHosts` allows. The name is looked up once and the
connection goes to the checked address, with the name in TLS and Host. No redirects, proxy, cookies or
decompression. One time limit covers everything except the look-up, which has the system resolver's limit.
The response body is bounded.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from grpo_engine.outbound.addresses import AllowedHosts, addresses_of, parse
from grpo_engine.process.deadline import Deadline

if TYPE_CHECKING:
    import httpcore

MAX_ANSWER_BYTES = 2**20
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,4094}[\x21-\x7e])?|")
_OUR_HEADERS = re.compile(
    "host|content-(length|type|encoding)|transfer-encoding|accept-encoding|connection|keep-alive|upgrade|te"
    "|trailer|expect|proxy-.*|webhook-(id|timestamp|signature)"
)
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 8.0


def check_headers(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers. Raises ValueError if a user may not set one, or if one could smuggle others."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError("a header name may contain only letters, digits and !#$%&'*+.^_`|~-")
        if _OUR_HEADERS.fullmatch(name.lower()):
            raise ValueError(f"the header {name} is reserved")
        if not _HEADER_VALUE.fullmatch(value):
            raise ValueError(f"the header {name} has a line break, a non-ASCII character or is too long")
    if len({name.lower() for name in headers}) != len(headers):
        raise ValueError("duplicate header")
    return headers


class NoAnswer(Exception):
    """The server could not be reached or did not respond in time."""


class AnswerTooLong(NoAnswer):
    """The response is longer than MAX_ANSWER_BYTES."""


@dataclass(frozen=True)
class WebAnswer:
    """Status, headers (names in lower case) and body, at most MAX_ANSWER_BYTES."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_temporary_error(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in (408, 409, 429) or self.status >= 500


def post_with_retries(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    timeout_seconds: float,
    max_retries: int,
    allowed_hosts: AllowedHosts | None,
) -> WebAnswer:
    """`post` with retries after temporary errors, with growing pauses, all within `timeout_seconds`.

    A Retry-After header is respected; one beyond the time limit ends the retries. Returns the last response
    whatever its status. Raises RefusedUrl, NoAnswer if there was none.
    """
    deadline = Deadline(timeout_seconds)
    answer: WebAnswer | None = None
    for attempt in range(max_retries + 1):
        outcome: WebAnswer | NoAnswer
        try:
            outcome = answer = _send("POST", url, body, headers, deadline, allowed_hosts)
        except AnswerTooLong:
            raise
        except NoAnswer as error:
            outcome = answer or error
        if isinstance(outcome, WebAnswer) and not outcome.is_temporary_error:
            return outcome
        pause = _pause_seconds(outcome, attempt)
        if attempt == max_retries or pause >= deadline.seconds_left:
            break
        time.sleep(pause)
    if isinstance(outcome, NoAnswer):
        raise outcome
    return outcome


def _pause_seconds(outcome: WebAnswer | NoAnswer, attempt: int) -> float:
    if isinstance(outcome, WebAnswer):
        requested = _retry_after(outcome.headers.get("retry-after", ""))
        if requested is not None:
            return requested
    longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2**attempt)
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - spreads retries, no secret


def _retry_after(text: str) -> float | None:
    """Seconds of a Retry-After header, a number or a date; None if it is neither."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    timeout_seconds: float,
    allowed_hosts: AllowedHosts | None = None,
    kept_bytes: int | None = None,
) -> WebAnswer:
    """POST a body and read the response. Raises RefusedUrl before any connection, NoAnswer after.

    With `kept_bytes` no more than that is read, and a longer, cut or slow body is not an error.
    """
    deadline = Deadline(timeout_seconds)
    return _send("POST", url, body, headers, deadline, allowed_hosts, kept_bytes)


def get(url: str, *, timeout_seconds: float) -> WebAnswer:
    """GET a response. Raises RefusedUrl before any connection, NoAnswer after."""
    return _send("GET", url, b"", {}, Deadline(timeout_seconds))


def _send(
    method: str,
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    deadline: Deadline,
    allowed_hosts: AllowedHosts | None = None,
    kept_bytes: int | None = None,
) -> WebAnswer:
    import httpcore

    from grpo_engine.outbound.pinned import PinnedBackend, tls_context

    target = parse(url, allowed_hosts or AllowedHosts.from_environment())
    try:
        backend = PinnedBackend(addresses_of(target), deadline)
    except (OSError, UnicodeError):
        raise NoAnswer(f"{target.host} has no address") from None
    context = tls_context(os.environ.get("SSL_CERT_FILE")) if target.scheme == "https" else None
    pinned = httpcore.URL(
        scheme=target.scheme, host=target.host, port=target.port, target=target.path.encode("ascii")
    )
    fields = {
        "Host": target.authority,
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "User-Agent": "grpo",
        **headers,
    }
    try:
        with (
            httpcore.ConnectionPool(ssl_context=context, network_backend=backend) as pool,
            pool.stream(method, pinned, headers=list(fields.items()), content=body) as response,
        ):
            return _read(response, kept_bytes)
    except httpcore.LocalProtocolError:  # its text may repeat a header, which may hold a key
        raise NoAnswer(f"{target.host}: invalid request headers") from None
    except httpcore.TimeoutException:
        raise NoAnswer(f"{target.host} did not answer within {deadline.seconds:.3g} s") from None
    except (httpcore.NetworkError, httpcore.ProtocolError) as error:
        raise NoAnswer(f"{target.host}: {str(error)[:200] or type(error).__name__}") from None


def _read(response: httpcore.Response, kept_bytes: int | None) -> WebAnswer:
    import httpcore

    parts: list[bytes] = []
    room = MAX_ANSWER_BYTES if kept_bytes is None else kept_bytes
    try:
        for part in response.iter_stream():
            if len(part) > room and kept_bytes is None:
                raise AnswerTooLong(f"the response is longer than {MAX_ANSWER_BYTES} bytes")
            parts.append(part[:room])
            room -= len(part)
            if room < 0:
                break
    except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError):
        if kept_bytes is None:
            raise
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
    return WebAnswer(response.status, headers, b"".join(parts))
