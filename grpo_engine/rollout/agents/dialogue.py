"""The conversations of one rollout as rows of exact tokens.

A request that repeats what was said before, and adds tool answers or a message of the user, continues those
tokens: only what is new is tokenised. Any other request starts a new row. So sampled tokens are never
rendered again, whatever the chat template or the agent makes of earlier turns.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from grpo_engine.chat.protocol import FunctionCall, Refused
from grpo_engine.config.messages import read_arguments, text_of
from grpo_engine.contract.errors import DatasetError
from grpo_engine.objective.types import Completion
from grpo_engine.rollout.dataset import RowReader
from grpo_engine.rollout.sampler.turns import Tokens
from grpo_engine.rollout.tools.rendering import UNKNOWN_TOOL, AnswerRenderer

Message = Mapping[str, Any]


class TurnEnd(NamedTuple):
    """The end of a sampled turn."""

    number: int
    """Number of the turn in its rollout."""
    num_said: int
    """Messages up to and including the turn."""
    num_tokens: int
    call_ids: tuple[str, ...]
    names: tuple[str, ...]
    """Names of the called functions."""


class Row(Tokens):
    """One conversation: `num_prompt` tokens of its first prompt, then turns and what followed them."""

    def __init__(
        self, said: list[str], tools: str, num_prompt: int, given: Sequence[int], ends: Sequence[TurnEnd] = ()
    ) -> None:
        """`said`: the messages (`_said`), the model's own included."""
        super().__init__(given)
        self.said, self.tools, self.num_prompt, self.ends = said, tools, num_prompt, list(ends)

    @property
    def first_sampled(self) -> int:
        """Position of the first sampled token; the row's length if there is none."""
        return self.sampled.index(True) if True in self.sampled else len(self.sampled)

    def add_turn(self, turn: Completion, number: int, text: str, calls: Sequence[FunctionCall]) -> None:
        """Add a sampled turn; `text` and `calls` are what the agent receives."""
        self.add_sampled(turn)
        written = [{"function": {"name": each.name, "arguments": each.arguments}} for each in calls]
        self.said.append(_said({"role": "assistant", "content": text, "tool_calls": written}))
        ids, names = tuple(each.id for each in calls), tuple(each.name for each in calls)
        self.ends.append(TurnEnd(number, len(self.said), len(self.token_ids), ids, names))

    def until(self, end: TurnEnd) -> "Row":
        """A new row with the same tokens up to `end`; they are trained only once, in this one."""
        ids, ends = self.token_ids[: end.num_tokens], self.ends[: self.ends.index(end) + 1]
        return Row(self.said[: end.num_said], self.tools, self.num_prompt, ids, ends)


class Dialogue:
    """`context`: maximum tokens of a row; `max_tokens`: maximum tokens after its first prompt."""

    def __init__(self, reader: RowReader, renderer: AnswerRenderer, context: int, max_tokens: int) -> None:
        self.rows: list[Row] = []
        self._reader, self._renderer = reader, renderer
        self._context, self._max_tokens = context, max_tokens

    def room(self, row: Row) -> int:
        """Tokens that may still follow."""
        length = len(row.token_ids)
        return min(self._context - length, self._max_tokens - (length - row.num_prompt))

    def row_for(self, messages: Sequence[Message], tools: Sequence[Message]) -> Row:
        """The row whose next turn answers this request, with room for it. Raises Refused."""
        said, shown = [_said(each) for each in messages], json.dumps(tools, sort_keys=True)
        return self._continued(messages, said, shown) or self._started(messages, tools, said, shown)

    def _continued(self, messages: Sequence[Message], said: list[str], tools: str) -> Row | None:
        """The row that the request continues, or a copy of it if the row has continued otherwise."""
        known = [(row, end) for row in self.rows if row.tools == tools for end in row.ends]
        for row, end in sorted(known, key=lambda each: -each[1].num_said):
            if said[: end.num_said] != row.said[: end.num_said]:
                continue
            continued = row if end == row.ends[-1] and len(row.said) == end.num_said else row.until(end)
            ids = self._rendered(messages[end.num_said :], end, continued)
            if ids is None:
                return None
            if continued is not row:
                self.rows.append(continued)
            continued.add_given(ids)
            continued.said = list(said)
            return continued
        return None

    def _rendered(self, new: Sequence[Message], end: TurnEnd, row: Row) -> Sequence[int] | None:
        """Tokens of the messages after a turn: answers to all of its calls, or one message of the user.

        None for any others, and if there is no room for them.
        """
        last, room = row.token_ids[-1], self.room(row) - 1
        if len(new) == 1 and new[0]["role"] == "user":
            return self._renderer.render_message(text_of(new[0]), last_token=last, room=room)
        answered = tuple(each.get("tool_call_id") for each in new if each["role"] == "tool")
        if not new or len(answered) != len(new) or answered != end.call_ids:
            return None
        known = {tool["function"]["name"] for tool in json.loads(row.tools)}
        names = [name if name in known else UNKNOWN_TOOL for name in end.names]
        return self._renderer.render(names, [text_of(each) for each in new], last_token=last, room=room)

    def _started(
        self, messages: Sequence[Message], tools: Sequence[Message], said: list[str], shown: str
    ) -> Row:
        """A new row. Raises Refused if the chat template does not accept it, or it leaves no room."""
        try:
            (prompt,) = self._reader.prompts([{"messages": list(messages), "tools": list(tools)}])
        except DatasetError as error:
            raise Refused("invalid_messages", error.message.removeprefix("row 1: "), "messages") from error
        ids = self._renderer.policy.known(prompt.token_ids)
        row = Row(said, shown, len(ids), ids)
        if self.room(row) < 1:
            raise Refused(
                "context_length_exceeded",
                f"The conversation has {len(row.token_ids)} tokens, which leaves no room for an answer: the "
                f"job allows {self._max_tokens} after the first prompt and {self._context} in all.",
                "messages",
            )
        self.rows.append(row)
        return row


def _said(message: Message) -> str:
    """A message in one form, regardless of what a client adds or leaves out."""
    calls = []
    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        calls.append([function.get("name"), read_arguments(function.get("arguments"))])
    said = [message["role"], text_of(message), calls, message.get("tool_call_id")]
    return json.dumps(said, sort_keys=True)
