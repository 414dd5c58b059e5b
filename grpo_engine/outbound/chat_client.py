"""A thread-safe client of OpenAI-compatible chat servers, without streaming.

    client = ChatClient("default", "judge-large")
    answer = client.complete([{"role": "user", "content": "…"}], temperature=0.0)

Temporary errors are retried within one time limit for the whole call. No error message contains the key.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from grpo_engine.contract.records import Record, first_problem
from grpo_engine.outbound.addresses import RefusedUrl
from grpo_engine.outbound.operator_endpoints import EndpointError, find_endpoint
from grpo_engine.outbound.web import NoAnswer, WebAnswer, post_with_retries

MAX_RETRIES = 4
SHOWN_CHARACTERS = 300
"""Maximum characters of a server's text in an error message."""


class ChatServerError(Exception):
    """The server did not respond (`status` None) or refused the request."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ChatParseError(Exception):
    """The response is not a chat completion."""


class ChatUsage(Record):
    """Tokens as the server counts them."""

    input_tokens: int = 0
    output_tokens: int = 0


class ChatAnswer(Record):
    """The model's answer."""

    text: str
    """Empty if the model spent all tokens on reasoning, or refused."""
    usage: ChatUsage
    refusal: str | None
    """Why the model refused; None if it did not."""
    finish_reason: str | None


class ChatClient:
    """One model on one of the operator's endpoints."""

    def __init__(self, name: str, model: str, timeout: float = 120.0) -> None:
        """`timeout` in seconds covers a whole call with retries and pauses.

        Raises EndpointError if there is no such endpoint, or it does not offer the model.
        """
        self.endpoint = find_endpoint(name)
        if self.endpoint.models is not None and model not in self.endpoint.models:
            raise EndpointError(f"the endpoint {name!r} does not offer {model!r}")
        self.model = model
        self.timeout = timeout

    def complete(self, messages: Sequence[Mapping[str, Any]], **sampling: Any) -> ChatAnswer:
        """Request a completion. `sampling` fields are sent unchanged, except None values.

        Raises ChatServerError, ChatParseError; a refusal is an answer.
        """
        set_fields = {name: value for name, value in sampling.items() if value is not None}
        body = json.dumps({"model": self.model, "messages": list(messages), **set_fields}, allow_nan=False)
        headers = {"Content-Type": "application/json"}
        if self.endpoint.api_key is not None:
            headers["Authorization"] = f"Bearer {self.endpoint.api_key.get_secret_value()}"
        try:
            answer = post_with_retries(
                self.endpoint.url.rstrip("/") + "/chat/completions",
                body.encode(),
                headers,
                timeout_seconds=self.timeout,
                max_retries=MAX_RETRIES,
                allowed_hosts=self.endpoint.allowed_hosts,
            )
        except (NoAnswer, RefusedUrl) as error:
            raise ChatServerError(self._without_key(str(error))) from None
        if not 200 <= answer.status < 300:
            raise ChatServerError(self._error_text(answer), answer.status)
        return _parse(answer.body)

    def _error_text(self, answer: WebAnswer) -> str:
        if answer.status in (401, 403):  # servers repeat parts of the key here
            return f"status {answer.status}: the server rejected the operator's key"
        if 300 <= answer.status < 400:
            return f"status {answer.status}: redirects are not followed"
        text = " ".join(self._without_key(answer.body.decode("utf-8", "replace")).split())
        return f"status {answer.status}: {text[:SHOWN_CHARACTERS]}"

    def _without_key(self, text: str) -> str:
        key = self.endpoint.api_key
        return text.replace(key.get_secret_value(), "***") if key else text


class _Message(BaseModel):
    content: str | None = None
    refusal: str | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Usage(BaseModel):
    prompt_tokens: int = Field(0, ge=0)
    completion_tokens: int = Field(0, ge=0)


class _Completion(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: _Usage | None = None


def _parse(body: bytes) -> ChatAnswer:
    try:
        completion = _Completion.model_validate_json(body)
    except ValidationError as error:
        place, message = first_problem(error)
        raise ChatParseError(f"not a chat completion: {place} {message}".replace("  ", " ")) from None
    choice, usage = completion.choices[0], completion.usage or _Usage()
    refusal = choice.message.refusal
    if not refusal and choice.finish_reason == "content_filter":
        refusal = "stopped by the server's content filter"
    return ChatAnswer(
        text=choice.message.content or "",
        usage=ChatUsage(input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens),
        refusal=refusal or None,
        finish_reason=choice.finish_reason,
    )
