"""Bodies of `/v1/chat/completions` and `/v1/completions`, in OpenAI's terms.

What would change the answer and cannot be had here is refused with its field's name; what changes nothing
is accepted and ignored. Boundary: shapes of requests; those of answers are `answers.py`'s.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationInfo, field_validator, model_validator

from grpo_engine.config.recipes import problem_at
from grpo_engine.serve.protocol import MAX_COMPLETIONS, MAX_STOPS
from service.web.validation import RequestBody

MAX_TOKENS = 2**20
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_p": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "reasoning_effort": (),
    "verbosity": (),
    "moderation": (),
    "suffix": (),
    "echo": (False,),
    "best_of": (1,),
}
"""Unsupported fields → accepted values besides null, which change nothing."""
IGNORED = {
    *("user", "metadata", "store", "service_tier", "safety_identifier", "parallel_tool_calls"),
    *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
}
REASON = "This sampler draws from the model's whole distribution and returns its text"

Text = Annotated[str, Field(min_length=1, max_length=200)]


class Part(RequestBody):
    type: Literal["text"]
    text: str
    """Text of the part."""


class Message(RequestBody):
    role: Literal["developer", "system", "user", "assistant", "tool"]
    """Author of the message."""
    content: str | Annotated[list[Part], Field(min_length=1)] | None = None
    """Text of the message, or a list of text parts."""
    name: str | None = None
    """Name of the author, for chat templates that show it."""
    tool_calls: list[dict[str, Any]] | None = None
    """Tool calls of an earlier turn, for chat templates that show them."""
    tool_call_id: str | None = None
    """Id of the tool call that a `tool` message answers."""
    refusal: None = None
    """Must be null."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.content is None and not self.tool_calls:
            raise problem_at("Field required", "content")
        return self


class StreamOptions(RequestBody):
    include_usage: bool | None = None
    """Send the usage in a last chunk."""
    include_obfuscation: bool | None = None
    """Accepted and ignored: chunks are never padded."""


def _describe_inert_fields(schema: dict[str, Any]) -> None:
    """Describe the fields of OpenAI's requests that this sampler does not support, or that change nothing."""
    for name, field in schema["properties"].items():
        if name in NEUTRAL:
            accepted = ", ".join(["null", *map(json.dumps, NEUTRAL[name])])
            field["description"] = f"Not supported; accepted values: {accepted}."
        elif name in IGNORED:
            field["description"] = "Accepted for compatibility and ignored."


class Body(RequestBody):
    """Fields of both requests."""

    model_config = ConfigDict(json_schema_extra=_describe_inert_fields)

    model: str = Field(min_length=1, max_length=512)
    """Name of a base model, a fine-tuned model or one of its checkpoints."""
    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    """Maximum tokens of the completion; null: 1024, or what the context leaves."""
    temperature: float | None = Field(None, ge=0, le=2)
    """Sampling temperature, 0 to 2; 0: greedy, null: 1."""
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    """Equal seeds sample equal tokens; null: a different completion each time."""
    stop: str | Annotated[list[Text], Field(max_length=MAX_STOPS)] | None = None
    """Texts that end the completion; they are not part of it."""
    n: int | None = Field(None, ge=1, le=MAX_COMPLETIONS)
    """Number of completions; null: 1."""
    stream: bool | None = None
    """Send the completion as server-sent events."""
    stream_options: StreamOptions | None = None
    """Options of the stream."""

    top_p: Any = None
    frequency_penalty: Any = None
    presence_penalty: Any = None
    logit_bias: Any = None
    user: Any = None

    @field_validator(*NEUTRAL, check_fields=False)
    @classmethod
    def _changes_nothing(cls, value: Any, info: ValidationInfo) -> Any:
        accepted = NEUTRAL[str(info.field_name)]
        if value is not None and not any(_equal(value, one) for one in accepted):
            only = " or ".join(["null", *(repr(one) for one in accepted)])
            raise ValueError(f"{REASON}: leave this out (only {only} is accepted)")
        return value

    @model_validator(mode="after")
    def _streams_what_it_says(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise problem_at("stream_options is for stream: true", "stream_options")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(text for text in given if text)

    @property
    def includes_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatRequest(Body):
    messages: list[Message] = Field(min_length=1)
    """The conversation so far."""
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    """OpenAI's newer name of max_tokens."""
    logprobs: bool | None = None
    """Return log-probabilities of the sampled tokens, at the request's temperature (greedy: at 1)."""

    top_logprobs: Any = None
    response_format: Any = None
    modalities: Any = None
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    moderation: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    parallel_tool_calls: Any = None

    @model_validator(mode="after")
    def _has_one_limit(self) -> Self:
        if None not in (self.max_tokens, self.max_completion_tokens):
            raise problem_at("give either max_tokens or max_completion_tokens", "max_tokens")
        return self


class CompletionRequest(Body):
    prompt: Annotated[str, Field(min_length=1)] | Annotated[list[str], Field(min_length=1, max_length=1)]
    """The text to complete, or a list of one text."""
    logprobs: None = None
    """Must be null."""

    suffix: Any = None
    echo: Any = None
    best_of: Any = None


def _equal(given: Any, accepted: Any) -> bool:
    """As JSON has it: true is not 1."""
    return bool(given == accepted) and isinstance(given, bool) is isinstance(accepted, bool)
