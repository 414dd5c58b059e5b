"""Pieces → OpenAI's answers: a whole completion, or the chunks of one as it grows.

Boundary: pure functions and shapes; framing and waiting are the endpoints' and the feed's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from grpo_engine.serve.protocol import Piece, Token, Usage

Document = dict[str, Any]


class UsageRead(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class TokenLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int] | None
    """Null where the token is a part of a character."""
    top_logprobs: list[Document] = []


class Logprobs(BaseModel):
    content: list[TokenLogprob]


class AssistantMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: Logprobs | None
    finish_reason: Literal["stop", "length"]


class ChatCompletion(BaseModel):
    """OpenAI's `chat.completion`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageRead


class TextChoice(BaseModel):
    index: int
    text: str
    logprobs: None = None
    finish_reason: Literal["stop", "length"]


class Completion(BaseModel):
    """OpenAI's `text_completion`."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: UsageRead


@dataclass(frozen=True)
class Answered:
    """What every answer to one request says of it."""

    id: str
    created: int
    """Unix seconds."""
    model: str
    includes_usage: bool
    """In a stream: a last chunk has it."""

    def chat(self, pieces: Iterable[Piece], usage: Usage) -> ChatCompletion:
        choices = [
            ChatChoice(
                index=index,
                message=AssistantMessage(content="".join(piece.text for piece in own)),
                logprobs=_logprobs([token for piece in own for token in piece.tokens]),
                finish_reason=_reason(own),
            )
            for index, own in _by_index(pieces)
        ]
        return ChatCompletion(**self._named, choices=choices, usage=_usage(usage))

    def text(self, pieces: Iterable[Piece], usage: Usage) -> Completion:
        choices = [
            TextChoice(index=index, text="".join(piece.text for piece in own), finish_reason=_reason(own))
            for index, own in _by_index(pieces)
        ]
        return Completion(**self._named, choices=choices, usage=_usage(usage))

    def chat_opening(self, num_choices: int) -> list[Document]:
        """The first chunk of each choice, which says who speaks."""
        opened = {"role": "assistant", "content": "", "refusal": None}
        return [self._chat_chunk(index, dict(opened), None, None) for index in range(num_choices)]

    def chat_chunks(self, piece: Piece) -> list[Document]:
        """What a piece is in a stream: its text, and after the last one an empty delta with the reason."""
        chunks = []
        if piece.text or piece.tokens:
            chunks.append(self._chat_chunk(piece.index, {"content": piece.text}, piece.tokens, None))
        if piece.finish_reason is not None:
            chunks.append(self._chat_chunk(piece.index, {}, None, piece.finish_reason))
        return chunks

    def text_chunks(self, piece: Piece) -> list[Document]:
        choice = {"index": piece.index, "text": piece.text, "logprobs": None}
        return [self._chunk("text_completion", [{**choice, "finish_reason": piece.finish_reason}])]

    def usage_chunk(self, kind: str, usage: Usage) -> Document:
        return {**self._chunk(kind, []), "usage": _usage(usage).model_dump()}

    def _chat_chunk(
        self, index: int, delta: Document, tokens: Iterable[Token] | None, reason: str | None
    ) -> Document:
        logprobs = _logprobs(list(tokens or ()))
        shown = None if logprobs is None else logprobs.model_dump()
        choice = {"index": index, "delta": delta, "logprobs": shown, "finish_reason": reason}
        return self._chunk("chat.completion.chunk", [choice])

    def _chunk(self, kind: str, choices: list[Document]) -> Document:
        chunk = {**self._named, "object": kind, "choices": choices}
        return {**chunk, "usage": None} if self.includes_usage else chunk

    @property
    def _named(self) -> Document:
        return {"id": self.id, "created": self.created, "model": self.model}


def _by_index(pieces: Iterable[Piece]) -> list[tuple[int, list[Piece]]]:
    found: defaultdict[int, list[Piece]] = defaultdict(list)
    for piece in pieces:
        found[piece.index].append(piece)
    return sorted(found.items())


def _reason(pieces: list[Piece]) -> Any:
    return next(piece.finish_reason for piece in pieces if piece.finish_reason is not None).value


def _usage(usage: Usage) -> UsageRead:
    total = usage.prompt_tokens + usage.completion_tokens
    return UsageRead(**usage.model_dump(), total_tokens=total)


def _logprobs(tokens: list[Token]) -> Logprobs | None:
    if not tokens:
        return None
    return Logprobs(
        content=[
            TokenLogprob(
                token=token.text,
                logprob=token.logprob,
                bytes=None if "�" in token.text else list(token.text.encode()),
            )
            for token in tokens
        ]
    )
