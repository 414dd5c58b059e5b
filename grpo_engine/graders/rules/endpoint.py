"""`endpoint`: the user's own grader behind a URL, or one of the operator's by name.

    POST {"sample": {…}, "item": {…}, "trace_id": "trace_…"}  →  {"score": 0.7, "feedback": "…"}

Requests are signed like Standard Webhooks if there is a secret. The same completion of the same row has the
same trace_id, so a server may cache its responses. `outbound/` checks the URL, at submit and at each call.

`environment`: the reward that the completion's environment gave.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from grpo_engine.contract.records import FinishReason, Sample
from grpo_engine.graders.base import Graded, RewardGrader
from grpo_engine.graders.errors import UnscorableError
from grpo_engine.graders.untrusted_json import read_graded
from grpo_engine.outbound.addresses import AllowedHosts, RefusedUrl, check_url
from grpo_engine.outbound.operator_endpoints import EndpointError, find_endpoint
from grpo_engine.outbound.signing import signature_headers
from grpo_engine.outbound.web import NoAnswer, WebAnswer, check_headers, post_with_retries

MAX_RETRIES = 3
MAX_REQUEST_BYTES = 2**22
NO_REWARD = "the environment gave no reward"


class Endpoint(RewardGrader):
    """Reward = the score in the server's response, a finite number. Give exactly one of url and endpoint."""

    runs_in = "thread"

    type: Literal["endpoint"]
    url: Annotated[str, AfterValidator(check_url)] | None = None
    """https URL with a public host name on port 443 or 8443."""
    endpoint: str | None = Field(None, min_length=1, max_length=128)
    """Name of one of the operator's endpoints, instead of url."""
    headers: Annotated[dict[str, str], Field(max_length=16), AfterValidator(check_headers)] = {}
    """Headers of each request; visible to the tenant's keys, hidden from shared links."""
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
            return _read(self._post(body, trace_id))
        except NoAnswer as error:
            raise UnscorableError("unresponsive_reward_error", str(error)) from None
        except (RefusedUrl, EndpointError, ValueError) as error:
            raise UnscorableError("other_error", str(error)) from None

    def _post(self, body: bytes, trace_id: str) -> WebAnswer:
        url, allowed_hosts = self.url or "", AllowedHosts.from_environment()
        headers = {"Content-Type": "application/json", **self.headers}
        secret = SecretStr(os.environ.get("GRPO_ENDPOINT_SECRET", ""))
        if self.endpoint is not None:
            operated = find_endpoint(self.endpoint)
            url, allowed_hosts, secret = operated.url, operated.allowed_hosts, operated.secret or secret
            if operated.api_key is not None:
                headers["Authorization"] = f"Bearer {operated.api_key.get_secret_value()}"
        if secret:
            headers |= signature_headers([secret], trace_id, body)
        return post_with_retries(
            url,
            body,
            headers,
            timeout_seconds=self.timeout_seconds,
            max_retries=MAX_RETRIES,
            allowed_hosts=allowed_hosts,
        )


class EnvironmentReward(RewardGrader):
    """Reward = the episode's reward. An episode without any reward is unscorable, not 0."""

    type: Literal["environment"]

    def evaluate(self, sample: Sample, item: Mapping[str, Any]) -> Graded:
        if sample.environment_reward is None:
            was_cut = sample.finish_reason is FinishReason.LENGTH
            why = ": the episode was cut at max_completion_tokens or max_turns" if was_cut else ""
            raise UnscorableError("other_error", f"{NO_REWARD}{why}")
        return Graded(sample.environment_reward)


def request_body(sample: Sample, item: Mapping[str, Any]) -> tuple[bytes, str]:
    """The request and its trace_id, a function of sample and item. Raises UnscorableError."""
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
    """Raises UnscorableError, ValueError."""
    if 300 <= answer.status < 400:
        raise UnscorableError("other_error", f"status {answer.status}: redirects are not followed")
    if not 200 <= answer.status < 300:
        raise UnscorableError("unresponsive_reward_error", f"status {answer.status}")
    return read_graded(answer.body)
