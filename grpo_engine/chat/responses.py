"""OpenAI's Responses over the same backends: its request as a chat, and the chat's answer as its items.

Nothing is stored, so a request must repeat the conversation. Boundary: pure; `http_app.py` frames the events.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import from_json

from grpo_engine.chat.answers import AnswerFormat, Document
from grpo_engine.chat.protocol import Generate, Piece, Usage
from grpo_engine.chat.requests import MAX_TOKENS, Body, Function, Ignored, Only
from grpo_engine.config.recipes import problem_at
from grpo_engine.contract.records import FinishReason


class ResponseTool(Function):
    type: Literal["function"]


class ResponsesRequest(Body):
    input: str | Annotated[list[dict[str, Any]], Field(min_length=1)]
    """A text of the user, or the conversation's items."""
    instructions: str | None = None
    """A system message before the input."""
    max_output_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    """Maximum tokens of the answer."""
    tools: list[ResponseTool] | None = Field(None, max_length=128)
    """Functions that the model may call; its calls are returned, not run."""
    tool_choice: Annotated[Any, Only("none", "auto")] = None

    previous_response_id: Annotated[Any, Only()] = None
    conversation: Annotated[Any, Only()] = None
    background: Annotated[Any, Only(False)] = None
    text: Annotated[Any, Only({"format": {"type": "text"}})] = None
    top_logprobs: Annotated[Any, Only(0)] = None
    include: Ignored = None
    metadata: Ignored = None
    parallel_tool_calls: Ignored = None
    prompt_cache_key: Ignored = None
    reasoning: Ignored = None
    safety_identifier: Ignored = None
    service_tier: Ignored = None
    store: Ignored = None
    truncation: Ignored = None

    @model_validator(mode="after")
    def _is_one_answer(self) -> "ResponsesRequest":
        if (self.n or 1) > 1:
            raise problem_at("a response is one answer", "n")
        self.command()  # refuses items that are not part of a conversation
        return self

    def command(self, **_prompt: Any) -> Generate:
        shown = [] if self.tool_choice == "none" else self.tools or []
        functions = [tool.model_dump(exclude_none=True, exclude={"type"}) for tool in shown]
        return super().command(
            messages=tuple(self._messages()),
            tools=tuple({"type": "function", "function": each} for each in functions),
            max_tokens=self.max_output_tokens or self.max_tokens,
        )

    def _messages(self) -> Iterator[dict[str, Any]]:
        if self.instructions is not None:
            yield {"role": "system", "content": self.instructions}
        if isinstance(self.input, str):
            yield {"role": "user", "content": self.input}
            return
        turn: dict[str, Any] = {}
        for place, item in enumerate(self.input):
            own = _assistant_part(item, place)
            if turn and (own is None or own["content"]):
                yield turn
                turn = {}
            if own is not None:
                calls = turn.get("tool_calls", []) + own.get("tool_calls", [])
                turn = {**own, **turn, **({"tool_calls": calls} if calls else {})}
            elif item.get("type") != "reasoning":
                yield _given_message(item, place)
        if turn:
            yield turn


def _assistant_part(item: dict[str, Any], place: int) -> dict[str, Any] | None:
    """A text or a call of the model as part of its turn; None for any other item."""
    if item.get("type") == "function_call":
        function = {"name": item.get("name"), "arguments": _arguments(item, place)}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    if item.get("role") == "assistant":
        return {"role": "assistant", "content": _text(item.get("content"), place)}
    return None


def _given_message(item: dict[str, Any], place: int) -> dict[str, Any]:
    if item.get("type") == "function_call_output":
        text = _text(item.get("output"), place)
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": text}
    if item.get("role") in ("user", "system", "developer") and item.get("type", "message") == "message":
        return {"role": item["role"], "content": _text(item.get("content"), place)}
    raise problem_at(f"an item of type {item.get('type')!r} is not supported", "input", place)


def _text(content: Any, place: int) -> str:
    parts = [{"text": content}] if isinstance(content, str) else content
    if isinstance(parts, list) and all(isinstance(part, dict) for part in parts):
        texts = [part.get("text") for part in parts]
        if all(isinstance(text, str) for text in texts):
            return "".join(texts)
    raise problem_at("only text is supported", "input", place)


def _arguments(item: dict[str, Any], place: int) -> Any:
    try:
        return from_json(item.get("arguments") or "{}", allow_inf_nan=False)
    except (ValueError, TypeError):
        raise problem_at("arguments must be JSON in a string", "input", place) from None


@dataclass(frozen=True)
class ResponseFormat(AnswerFormat):
    """Builds a response, or its events: items are complete when the answer ends."""

    chunk_object = "response"
    ends_with_done = False
    _pieces: list[Piece] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)

    def whole(self, pieces: Iterable[Piece], usage: Usage) -> Document:
        return self._response(list(pieces), usage)

    def opening(self) -> list[Document]:
        started = self._response([], None)
        return self._events(
            {"type": "response.created", "response": started},
            {"type": "response.in_progress", "response": started},
        )

    def chunks(self, piece: Piece) -> list[Document]:
        is_first = not any(each.text for each in self._pieces)
        self._pieces.append(piece)
        if not piece.text:
            return []
        item = self._message("", "in_progress")
        place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        begun = [
            {"type": "response.output_item.added", "output_index": 0, "item": item},
            {"type": "response.content_part.added", **place, "part": _part("")},
        ]
        delta = {"type": "response.output_text.delta", **place, "delta": piece.text, "logprobs": []}
        return self._events(*(begun if is_first else []), delta)

    def closing(self, usage: Usage) -> list[Document]:
        whole = self._response(self._pieces, usage)
        events = [
            event
            for place, item in enumerate(whole["output"])
            for event in (_text_end if item["type"] == "message" else _call_events)(item, place)
        ]
        return self._events(*events, {"type": f"response.{whole['status']}", "response": whole})

    def _events(self, *events: Document) -> list[Document]:
        return [{**event, "sequence_number": next(self._numbers)} for event in events]

    def _response(self, pieces: list[Piece], usage: Usage | None) -> Document:
        """`usage`: None before the answer is complete."""
        is_cut = bool(pieces) and pieces[-1].finish_reason is FinishReason.LENGTH
        status = "in_progress" if usage is None else "incomplete" if is_cut else "completed"
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "model": self.model,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": None,
            "metadata": {},
            "output": [] if usage is None else self._items(pieces),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": None if usage is None else _usage(usage),
        }

    def _items(self, pieces: list[Piece]) -> list[Document]:
        text = "".join(piece.text for piece in pieces)
        calls = [
            {
                "type": "function_call",
                "id": self._id(f"fc{place}"),
                "call_id": call.id,
                "name": call.name,
                "arguments": call.arguments,
                "status": "completed",
            }
            for place, call in enumerate(call for piece in pieces for call in piece.calls)
        ]
        return ([self._message(text, "completed")] if text or not calls else []) + calls

    def _message(self, text: str, status: str) -> Document:
        content = [_part(text)] if status == "completed" else []
        about = {"type": "message", "role": "assistant", "status": status}
        return {**about, "id": self._id("msg"), "content": content}

    def _id(self, kind: str) -> str:
        return f"{kind}_{self.id.removeprefix('resp-')}"


def _text_end(item: Document, place: int) -> list[Document]:
    (part,) = item["content"]
    about = {"item_id": item["id"], "output_index": place, "content_index": 0}
    return [
        {"type": "response.output_text.done", **about, "text": part["text"], "logprobs": []},
        {"type": "response.content_part.done", **about, "part": part},
        {"type": "response.output_item.done", "output_index": place, "item": item},
    ]


def _call_events(item: Document, place: int) -> list[Document]:
    about = {"item_id": item["id"], "output_index": place}
    written = {"name": item["name"], "arguments": item["arguments"]}
    begun = {**item, "arguments": "", "status": "in_progress"}
    return [
        {"type": "response.output_item.added", "output_index": place, "item": begun},
        {"type": "response.function_call_arguments.delta", **about, "delta": item["arguments"]},
        {"type": "response.function_call_arguments.done", **about, **written},
        {"type": "response.output_item.done", "output_index": place, "item": item},
    ]


def _part(text: str) -> Document:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Usage) -> Document:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
