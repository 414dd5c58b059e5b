"""What a serving engine is asked and what it answers (`serving.py`): one record a line, either way.

In: a `ServedModel` first, then each an `Ask` or a `Cancel`. Out: `Loaded` or `Unloadable`, then `Answer`s of
all open requests, as they grow.
Boundary: plain data, part of the door; the API makes the records and the worker hands them on.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, TypeAdapter

from grpo_engine.config.job import ModelSource, Runtime
from grpo_engine.contract.records import FinishReason, Record

MAX_COMPLETIONS = 8
"""Of one request."""
MAX_STOPS = 4


class ServedModel(Record):
    """Which weights, and how they use the machine."""

    model: ModelSource
    runtime: Runtime = Field(default_factory=Runtime)
    context_tokens: int | None = Field(None, ge=1)
    """The operator's limit of prompt and completion together; None: what the model says."""


class Ask(Record):
    """One request. Exactly one of `messages` and `prompt` is given."""

    type: Literal["ask"] = "ask"
    id: str
    messages: tuple[dict[str, Any], ...] | None = None
    prompt: str | None = None
    max_tokens: int | None = Field(None, ge=1)
    """Of each completion; None: what the context leaves, up to `DEFAULT_MAX_TOKENS`."""
    temperature: float = Field(1.0, ge=0)
    seed: int = Field(0, ge=0, lt=2**63)
    stop: tuple[str, ...] = Field((), max_length=MAX_STOPS)
    """A completion ends before the first of these."""
    n: int = Field(1, ge=1, le=MAX_COMPLETIONS)
    logprobs: bool = False


class Cancel(Record):
    """Nobody waits for the answer any more."""

    type: Literal["cancel"] = "cancel"
    id: str


class Token(Record):
    """A sampled token, where log-probabilities were asked for."""

    text: str
    logprob: float
    """At the sampling temperature; of a greedy token at temperature 1."""


class Piece(Record):
    """What one completion has grown by."""

    index: int
    text: str = ""
    """Whole characters only."""
    tokens: tuple[Token, ...] = ()
    finish_reason: FinishReason | None = None
    """Set in a completion's last piece."""


class Usage(Record):
    prompt_tokens: int
    completion_tokens: int
    """Of all completions, end-of-sequence tokens included."""


class Refusal(Record):
    """Why there is no answer, or no more of it. The message may reach the client."""

    code: str
    message: str
    param: str | None = None


class Answer(Record):
    """News of one request; with usage or a refusal it is the last."""

    type: Literal["answer"] = "answer"
    id: str
    pieces: tuple[Piece, ...] = ()
    usage: Usage | None = None
    refusal: Refusal | None = None

    @property
    def is_last(self) -> bool:
        return self.usage is not None or self.refusal is not None


class Loaded(Record):
    type: Literal["loaded"] = "loaded"


class Unloadable(Record):
    """The engine ends."""

    type: Literal["unloadable"] = "unloadable"
    code: str
    message: str


Order = TypeAdapter[Ask | Cancel](Ask | Cancel)
News = TypeAdapter[Answer | Loaded | Unloadable](Answer | Loaded | Unloadable)
