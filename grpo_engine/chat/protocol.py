"""One request to a model and its answer, without any form of HTTP.

Boundary: plain data.
"""

from typing import Any

from pydantic import Field

from grpo_engine.contract.records import FinishReason, Record

MAX_COMPLETIONS = 8
"""Maximum number of completions per request."""
MAX_STOPS = 4
INVALID = {"context_length_exceeded", "invalid_messages", "empty_prompt", "invalid_value"}
"""Codes of refusals that the request itself caused."""


class Generate(Record):
    """One request, with either `messages` or `prompt`."""

    messages: tuple[dict[str, Any], ...] | None = None
    tools: tuple[dict[str, Any], ...] = ()
    """Functions that the model may call, in OpenAI's form."""
    prompt: str | None = None
    max_tokens: int | None = Field(None, ge=1)
    """Maximum tokens per completion; None: as many as fit the context, at most `DEFAULT_MAX_TOKENS`."""
    temperature: float = Field(1.0, ge=0)
    seed: int = Field(0, ge=0, lt=2**63)
    stop: tuple[str, ...] = Field((), max_length=MAX_STOPS)
    """A completion ends before the first of these texts."""
    n: int = Field(1, ge=1, le=MAX_COMPLETIONS)
    logprobs: bool = False


class Token(Record):
    """A sampled token, if the request has `logprobs`."""

    text: str
    logprob: float
    """Log-probability at the sampling temperature; for a greedy token, at temperature 1."""


class FunctionCall(Record):
    """A tool call that the model wrote."""

    id: str
    name: str
    arguments: str
    """A JSON object."""


class Piece(Record):
    """New text of one completion."""

    index: int
    text: str = ""
    """New text, which ends with a complete character."""
    tokens: tuple[Token, ...] = ()
    calls: tuple[FunctionCall, ...] = ()
    """Only in a completion's last piece."""
    finish_reason: FinishReason | None = None
    """Set in a completion's last piece."""


class Usage(Record):
    prompt_tokens: int
    completion_tokens: int
    """Tokens of all completions, end-of-sequence tokens included."""


class Refusal(Record):
    """Why there is no answer, or no further part of it. The message may be shown to the client."""

    code: str
    message: str
    param: str | None = None


class Answer(Record):
    """Part of the answer to one request; the last one has `usage`."""

    pieces: tuple[Piece, ...] = ()
    usage: Usage | None = None


class Refused(Exception):
    """A model does not answer a request."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.refusal = Refusal(code=code, message=message, param=param)
