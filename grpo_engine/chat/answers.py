"""Builds OpenAI's responses from a model's pieces: a whole completion, or the chunks of a stream.

Boundary: pure; `http_app.py` frames the chunks.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field

from grpo_engine.chat.protocol import Answer, FunctionCall, Piece, Token, Usage
from grpo_engine.contract.records import FinishReason

Document = dict[str, Any]


class UsageRead(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class TokenLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int] | None
    """Null if the token is only part of a character."""
    top_logprobs: list[Document] = []


class Logprobs(BaseModel):
    content: list[TokenLogprob]


class AssistantMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str | None
    """Null if the model only called tools."""
    refusal: None = None
    tool_calls: list[Document] | None = Field(None, exclude_if=lambda calls: calls is None)


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: Logprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


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


class TextCompletion(BaseModel):
    """OpenAI's `text_completion`."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: UsageRead


@dataclass(frozen=True)
class AnswerFormat(ABC):
    """Builds the response to one request: whole, or as chunks."""

    id: str
    created: int
    """Unix seconds."""
    model: str
    num_choices: int
    includes_usage: bool
    """Whether a last chunk contains the usage."""
    chunk_object: ClassVar[str]
    ends_with_done: ClassVar[bool] = True
    """Whether `[DONE]` follows the last chunk."""

    @abstractmethod
    def whole(self, pieces: Iterable[Piece], usage: Usage) -> BaseModel | Document: ...

    @abstractmethod
    def chunks(self, piece: Piece) -> list[Document]:
        """The chunks of one piece in a stream."""

    def opening(self) -> list[Document]:
        """The first chunks, sent before any piece."""
        return []

    def part(self, answer: Answer) -> list[Document]:
        """The chunks of a part of the answer."""
        found = [chunk for piece in answer.pieces for chunk in self.chunks(piece)]
        return found if answer.usage is None else found + self.closing(answer.usage)

    def closing(self, usage: Usage) -> list[Document]:
        """The chunks after the last part: the usage, if the client requested it."""
        return [{**self._chunk([]), "usage": _usage(usage).model_dump()}] if self.includes_usage else []

    def _chunk(self, choices: list[Document]) -> Document:
        chunk = {**self._head, "object": self.chunk_object, "choices": choices}
        return {**chunk, "usage": None} if self.includes_usage else chunk

    @property
    def _head(self) -> Document:
        return {"id": self.id, "created": self.created, "model": self.model}


class ChatFormat(AnswerFormat):
    chunk_object = "chat.completion.chunk"

    def whole(self, pieces: Iterable[Piece], usage: Usage) -> ChatCompletion:
        choices = [
            ChatChoice(
                index=index,
                message=_message(own),
                logprobs=_logprobs([token for piece in own for token in piece.tokens]),
                finish_reason=_chat_reason(own[-1]),
            )
            for index, own in _by_index(pieces)
        ]
        return ChatCompletion(**self._head, choices=choices, usage=_usage(usage))

    def opening(self) -> list[Document]:
        """One chunk per choice, with the author's role."""
        delta = {"role": "assistant", "content": "", "refusal": None}
        return [self._delta(index, delta) for index in range(self.num_choices)]

    def chunks(self, piece: Piece) -> list[Document]:
        """The piece's text; after a completion's last piece its calls and an empty delta with the finish
        reason."""
        found = []
        if piece.text or piece.tokens:
            found.append(self._delta(piece.index, {"content": piece.text}, piece.tokens))
        if piece.calls:
            calls = [{"index": number, **_call(each)} for number, each in enumerate(piece.calls)]
            found.append(self._delta(piece.index, {"tool_calls": calls}))
        if piece.finish_reason is not None:
            found.append(self._delta(piece.index, {}, reason=_chat_reason(piece)))
        return found

    def _delta(
        self, index: int, delta: Document, tokens: Sequence[Token] = (), reason: Any = None
    ) -> Document:
        logprobs = _logprobs(tokens)
        shown = None if logprobs is None else logprobs.model_dump()
        return self._chunk([{"index": index, "delta": delta, "logprobs": shown, "finish_reason": reason}])


class TextFormat(AnswerFormat):
    chunk_object = "text_completion"

    def whole(self, pieces: Iterable[Piece], usage: Usage) -> TextCompletion:
        choices = [
            TextChoice(index=index, text=_text(own), finish_reason=_reason(own))
            for index, own in _by_index(pieces)
        ]
        return TextCompletion(**self._head, choices=choices, usage=_usage(usage))

    def chunks(self, piece: Piece) -> list[Document]:
        choice = {"index": piece.index, "text": piece.text, "logprobs": None}
        return [self._chunk([{**choice, "finish_reason": piece.finish_reason}])]


def _by_index(pieces: Iterable[Piece]) -> list[tuple[int, list[Piece]]]:
    found: defaultdict[int, list[Piece]] = defaultdict(list)
    for piece in pieces:
        found[piece.index].append(piece)
    return sorted(found.items())


def _reason(pieces: list[Piece]) -> Any:
    return next(piece.finish_reason for piece in pieces if piece.finish_reason is not None).value


def _chat_reason(last: Piece) -> Any:
    """`length` also for calls, because the last one may lack arguments."""
    is_cut = last.finish_reason is FinishReason.LENGTH
    return "tool_calls" if last.calls and not is_cut else _reason([last])


def _message(pieces: list[Piece]) -> AssistantMessage:
    text, calls = _text(pieces), [_call(each) for each in pieces[-1].calls]
    return AssistantMessage(content=text or (None if calls else ""), tool_calls=calls or None)


def _call(call: FunctionCall) -> Document:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _usage(usage: Usage) -> UsageRead:
    total = usage.prompt_tokens + usage.completion_tokens
    return UsageRead(**usage.model_dump(), total_tokens=total)


def _text(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def _logprobs(tokens: Sequence[Token]) -> Logprobs | None:
    found = [
        TokenLogprob(
            token=token.text,
            logprob=token.logprob,
            bytes=None if "\ufffd" in token.text else list(token.text.encode()),
        )
        for token in tokens
    ]
    return Logprobs(content=found) if found else None
