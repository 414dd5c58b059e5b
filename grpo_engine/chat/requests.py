"""Request bodies of `/v1/chat/completions` and `/v1/completions`, in OpenAI's terms.

Unsupported fields are refused by name if they would change the answer; others are ignored.
"""

import json
import secrets
from typing import Annotated, Any, Literal, Self

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema, core_schema

from grpo_engine.chat.protocol import MAX_COMPLETIONS, MAX_STOPS, Generate
from grpo_engine.config.recipes import problem_at
from grpo_engine.contract.records import Input

MAX_TOKENS = 2**20
REASON = "This sampler draws from the model's whole distribution and returns its text"


class Only:
    """Marks an unsupported field: null and these values are accepted, because they change nothing."""

    def __init__(self, *accepted: Any) -> None:
        self._accepted = accepted

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        accepted = ", ".join(["null", *map(json.dumps, self._accepted)])
        return handler(schema) | {"description": f"Not supported; accepted values: {accepted}."}

    def _check(self, value: Any) -> Any:
        if value is not None and not any(_equal(value, one) for one in self._accepted):
            only = " or ".join(["null", *map(repr, self._accepted)])
            raise ValueError(f"{REASON}: leave this out (only {only} is accepted)")
        return value


Ignored = Annotated[Any, Field(description="Accepted for compatibility and ignored.")]
Text = Annotated[str, Field(min_length=1, max_length=200)]


class Part(Input):
    type: Literal["text"]
    text: str
    """Text of the part."""


class Message(Input):
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
    def _has_content(self) -> Self:
        if self.content is None and not self.tool_calls:
            raise problem_at("Field required", "content")
        if not all(isinstance(call.get("function", {}), dict) for call in self.tool_calls or ()):
            raise problem_at("the function of a call must be an object", "tool_calls")
        return self


class Function(Input):
    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    """Name of the function."""
    description: str | None = None
    """What it does, for the model."""
    parameters: dict[str, Any] | None = None
    """JSON schema of its arguments."""
    strict: bool | None = None
    """Accepted and ignored, because agent libraries send it: arguments may differ from the schema."""


class FunctionTool(Input):
    type: Literal["function"]
    function: Function
    """The function that the model may call."""


class StreamOptions(Input):
    include_usage: bool | None = None
    """Send the usage in a last chunk."""
    include_obfuscation: bool | None = None
    """Accepted and ignored: chunks are never padded."""


class Body(Input):
    """Fields of both requests."""

    model: str = Field(min_length=1, max_length=512)
    """Name of a base model, a fine-tuned model or one of its checkpoints."""
    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    """Maximum tokens of the completion; null: 1024, or what the context leaves."""
    temperature: float | None = Field(None, ge=0, le=2)
    """Sampling temperature, 0 to 2; 0: greedy, null: 1."""
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    """The same seed samples the same tokens; null: a different completion each time."""
    stop: str | Annotated[list[Text], Field(max_length=MAX_STOPS)] | None = None
    """Texts that end the completion; they are not part of it."""
    n: int | None = Field(None, ge=1, le=MAX_COMPLETIONS)
    """Number of completions; null: 1."""
    stream: bool | None = None
    """Send the completion as server-sent events."""
    stream_options: StreamOptions | None = None
    """Options of the stream."""

    top_p: Annotated[Any, Only(1)] = None
    frequency_penalty: Annotated[Any, Only(0)] = None
    presence_penalty: Annotated[Any, Only(0)] = None
    logit_bias: Annotated[Any, Only({})] = None
    user: Ignored = None

    @model_validator(mode="after")
    def _streams_with_options(self) -> Self:
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

    def command(self, **prompt: Any) -> Generate:
        """The request without OpenAI's forms; without a seed it gets a random one."""
        return Generate(
            n=self.n or 1,
            stop=self.stops,
            seed=secrets.randbits(63) if self.seed is None else self.seed % 2**63,
            temperature=1.0 if self.temperature is None else self.temperature,
            **{"max_tokens": self.max_tokens, **prompt},
        )


class ChatRequest(Body):
    messages: list[Message] = Field(min_length=1)
    """The conversation so far."""
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    """OpenAI's newer name for max_tokens."""
    logprobs: bool | None = None
    """Return log-probabilities of the sampled tokens, at the request's temperature (greedy: at 1)."""

    tools: list[FunctionTool] | None = Field(None, max_length=128)
    """Functions that the model may call; its calls are returned, not run."""
    tool_choice: Annotated[Any, Only("none", "auto")] = None

    top_logprobs: Annotated[Any, Only(0)] = None
    response_format: Annotated[Any, Only({"type": "text"})] = None
    modalities: Annotated[Any, Only(["text"])] = None
    functions: Annotated[Any, Only([])] = None
    function_call: Annotated[Any, Only("none", "auto")] = None
    audio: Annotated[Any, Only()] = None
    prediction: Annotated[Any, Only()] = None
    web_search_options: Annotated[Any, Only()] = None
    reasoning_effort: Annotated[Any, Only()] = None
    verbosity: Annotated[Any, Only()] = None
    moderation: Annotated[Any, Only()] = None
    metadata: Ignored = None
    store: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None
    parallel_tool_calls: Ignored = None

    @model_validator(mode="after")
    def _has_one_limit(self) -> Self:
        if None not in (self.max_tokens, self.max_completion_tokens):
            raise problem_at("give either max_tokens or max_completion_tokens", "max_tokens")
        return self

    def command(self, **_prompt: Any) -> Generate:
        shown = [] if self.tool_choice == "none" else self.tools or []
        return super().command(
            messages=tuple(message.model_dump(exclude_none=True) for message in self.messages),
            tools=tuple(tool.model_dump(exclude_none=True) for tool in shown),
            max_tokens=self.max_completion_tokens or self.max_tokens,
            logprobs=bool(self.logprobs),
        )


class CompletionRequest(Body):
    prompt: Annotated[str, Field(min_length=1)] | Annotated[list[str], Field(min_length=1, max_length=1)]
    """The text to complete, or a list of one text."""
    logprobs: None = None
    """Must be null."""

    suffix: Annotated[Any, Only()] = None
    echo: Annotated[Any, Only(False)] = None
    best_of: Annotated[Any, Only(1)] = None

    def command(self, **_prompt: Any) -> Generate:
        return super().command(prompt=self.prompt if isinstance(self.prompt, str) else self.prompt[0])


def _equal(given: Any, accepted: Any) -> bool:
    """Whether two values are equal in JSON, where true is not 1."""
    return bool(given == accepted) and isinstance(given, bool) is isinstance(accepted, bool)
