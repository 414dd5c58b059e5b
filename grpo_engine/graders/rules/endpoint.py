"""`endpoint`: the user's own grader behind a URL, or one of the operator's by name.

    POST {"sample": {…}, "item": {…}, "trace_id": "trace_…"}  →  {"score": 0.7, "feedback": "…"}

Requests are signed as Standard Webhooks are where there is a secret. The same completion of the same row
has the same trace_id, so a server may answer a repeated request from memory.
Boundary: where a request may go is `web.py`'s to say, at submit and again at each call.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from grpo_engine.contract.records import Record, Sample
from grpo_engine.graders.base import Graded
from grpo_engine.graders.errors import UnscorableError
from grpo_engine.graders.remote import RemoteGrader, read_response
from grpo_engine.outbound.operator_endpoints import EndpointError, find_endpoint
from grpo_engine.outbound.signing import signature_headers
from grpo_engine.outbound.web import (
    NoAnswer,
    Outside,
    RefusedUrl,
    WebAnswer,
    check_headers,
    check_url,
    post_patiently,
)

MAX_RETRIES = 3
MAX_REQUEST_BYTES = 2**22


def _check_url(url: str) -> str:
    check_url(url)
    return url


def _check_headers(headers: dict[str, str]) -> dict[str, str]:
    check_headers(headers)
    return headers


class _Way(Record):
    """Where a request goes and how."""

    url: str
    headers: dict[str, str] = Field(repr=False)
    secret: SecretStr | None
    allowed: frozenset[str]


class Endpoint(RemoteGrader):
    """Reward = the score in the server's response, a finite number. Give exactly one of url and endpoint."""

    type: Literal["endpoint"]
    url: Annotated[str, AfterValidator(_check_url)] | None = None
    """https URL with a public host name on port 443 or 8443."""
    endpoint: str | None = Field(None, min_length=1, max_length=128)
    """Name of one of the operator's endpoints, instead of url."""
    headers: Annotated[dict[str, str], Field(max_length=16), AfterValidator(_check_headers)] = {}
    """Headers of each request; visible to everyone who can see the job."""
    timeout_seconds: float = Field(60.0, gt=0, le=600)
    """Time limit for one completion, retries included."""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.url is None) is (self.endpoint is None):
            raise ValueError("give one of url and endpoint")
        if self.endpoint is not None and any(name.lower() == "authorization" for name in self.headers):
            raise ValueError("the operator's endpoint has its own authorization")
        return self

    def evaluate(self, sample: Sample, item: Mapping[str, Any]) -> Graded:
        body, trace_id = request_body(sample, item)
        try:
            way = self._way()
            headers = {"Content-Type": "application/json", **way.headers}
            if way.secret is not None:
                headers |= signature_headers([way.secret], trace_id, body)
            answer = post_patiently(
                way.url,
                body,
                headers,
                timeout_seconds=self.timeout_seconds,
                max_retries=MAX_RETRIES,
                outside=Outside(way.allowed),
            )
        except NoAnswer as error:
            raise UnscorableError("unresponsive_reward_error", str(error)) from None
        except (RefusedUrl, EndpointError, ValueError) as error:
            raise UnscorableError("other_error", str(error)) from None
        return _read(answer)

    def _way(self) -> _Way:
        """Raises EndpointError, RefusedUrl."""
        common = os.environ.get("GRPO_ENDPOINT_SECRET")
        secret = SecretStr(common) if common else None
        if self.url is not None:
            allowed = Outside.from_environment().allowed
            return _Way(url=self.url, headers=dict(self.headers), secret=secret, allowed=allowed)
        endpoint = find_endpoint(self.endpoint or "")
        headers = dict(self.headers)
        if endpoint.api_key is not None:
            headers["Authorization"] = f"Bearer {endpoint.api_key.get_secret_value()}"
        return _Way(
            url=endpoint.url,
            headers=headers,
            secret=endpoint.secret or secret,
            allowed=endpoint.outside.allowed,
        )


def request_body(sample: Sample, item: Mapping[str, Any]) -> tuple[bytes, str]:
    """The request and its trace_id, which follows from sample and item alone. Raises UnscorableError."""
    data = {"sample": sample.model_dump(mode="json"), "item": dict(item)}
    try:
        canonical = json.dumps(data, sort_keys=True, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        raise UnscorableError("invalid_variable_error", "the row has no JSON form") from None
    trace_id = f"trace_{hashlib.sha256(canonical.encode()).hexdigest()[:32]}"
    body = json.dumps({**data, "trace_id": trace_id}).encode()
    if len(body) > MAX_REQUEST_BYTES:
        raise UnscorableError("other_error", f"more than {MAX_REQUEST_BYTES} bytes to grade")
    return body, trace_id


def _read(answer: WebAnswer) -> Graded:
    if 300 <= answer.status < 400:
        raise UnscorableError("other_error", f"status {answer.status}: redirects are not followed")
    if not 200 <= answer.status < 300:
        raise UnscorableError("unresponsive_reward_error", f"status {answer.status}")
    try:
        return read_response(answer.body)
    except ValueError as error:
        raise UnscorableError("other_error", str(error)) from None
