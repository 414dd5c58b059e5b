"""Tool answers as the token ids between a model's turn and its next one.

A made-up conversation shows once how a chat template writes tool answers: it is rendered with markers in
place of the answers, and the text around the markers is kept as token ids. Sampled tokens are never rendered
or tokenised again, whatever the template does to earlier turns. Answers are data: their text never becomes a
special token. If a template writes answers as JSON strings, their characters are escaped.

A model whose chat template is missing or does not support tool answers gets the plain format:

    \\n<tool_response>\\nANSWER\\n</tool_response>   (one for each answer)   \\n
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from transformers import PreTrainedTokenizerBase

from grpo_engine.config.tool_formats import (
    HERMES,
    QUESTION,
    ToolFormat,
    UnreadableFormat,
    call_id,
    calling_turns,
    find_format,
)
from grpo_engine.contract.errors import ConfigError
from grpo_engine.models.chat_template import rendered
from grpo_engine.models.policy import Policy

MARKER = 'answerqzx"{}"xzq'
ESCAPED_MARKER = json.dumps(MARKER)[1:-1]
SPOKEN = "spokenqzxxzq"
UNKNOWN_TOOL = "unknown"
"""Name of an unknown tool for templates, because text that the model wrote is never rendered."""
MARGIN_TOKENS, CHARACTERS_OF_ONE = 256, 8
"""How much of a long text is tokenised: this many tokens more than twice the kept ones, and as many
characters for each of them at first."""
OPENING, CLOSING = "\n<tool_response>\n", "\n</tool_response>"


@dataclass(frozen=True, slots=True)
class Frame:
    """The tokens around n tool answers."""

    closing: tuple[int, ...]
    """Tokens that end the model's turn if a stop string ended it without an end-of-turn token."""
    pieces: tuple[tuple[int, ...], ...]
    """n + 1 pieces: before the first answer, between two answers, after the last one."""
    is_json: bool = False
    """Whether answers are inside JSON strings."""

    def around(self, answers: Sequence[Sequence[int]], *, ended: bool, room: int) -> tuple[int, ...] | None:
        """Token ids of the answers in their frame, at most `room`: the longest answers are cut first.

        `ended`: whether the model's turn has its end-of-turn token. None if not even the frame fits.
        """
        head = () if ended else self.closing
        left = room - len(head) - sum(map(len, self.pieces))
        if left < 0:
            return None
        ids = [*head, *self.pieces[0]]
        kept = _fair([len(answer) for answer in answers], left)
        for answer, count, piece in zip(answers, kept, self.pieces[1:], strict=True):
            ids += [*answer[:count], *piece]
        return tuple(ids)


class AnswerRenderer:
    def __init__(self, policy: Policy, known: ToolFormat = HERMES) -> None:
        self.policy, self.tokenizer, self.stop_ids = policy, policy.tokenizer, policy.stop_set
        self._call_end = known.closing
        texts = {cast(str, self.tokenizer.decode([token])): token for token in sorted(self.stop_ids)}
        self._stops = {text: token for text, token in texts.items() if text}
        self._frames: dict[tuple[str, ...], Frame] = {}

    def render(
        self, names: Sequence[str], answers: Sequence[str], *, last_token: int, room: int
    ) -> tuple[int, ...] | None:
        """Token ids of the answers from the tools `names`, after a turn that ended in `last_token`.

        Answers are shortened to `room` tokens in total. None if not even the frame fits.
        """
        frame = self.frame(tuple(names))
        if frame.is_json:
            answers = [json.dumps(answer, ensure_ascii=False)[1:-1] for answer in answers]
        ids = [self.plain(answer) for answer in answers]
        return frame.around(ids, ended=last_token in self.stop_ids, room=room)

    def render_message(self, text: str, *, last_token: int, room: int) -> tuple[int, ...] | None:
        """Token ids of a user's message after a turn that ended in `last_token`; otherwise like `render`."""
        frame = self._message_frame
        if frame.is_json:
            text = json.dumps(text, ensure_ascii=False)[1:-1]
        return frame.around([self.beginning(text, room)], ended=last_token in self.stop_ids, room=room)

    @cached_property
    def _message_frame(self) -> Frame:
        """The tokens that this model's template writes around a user's message; line breaks without one."""
        turns = [{"role": "assistant", "content": SPOKEN}, {"role": "user", "content": MARKER.format(0)}]
        text = rendered(self.tokenizer, [QUESTION, *turns], for_completion=True)
        frame = None if text is None else self._frame_in(text, 1, with_calls=False)
        line = self._structure("\n")
        return frame or Frame((), (line, line))

    def frame(self, names: tuple[str, ...]) -> Frame:
        """The tokens that this model's template writes around the answers of these tools."""
        if names not in self._frames:
            self._frames[names] = next(self._candidates(names))
        return self._frames[names]

    def _candidates(self, names: tuple[str, ...]) -> Iterator[Frame]:
        """Possible frames: those of the template, the likeliest first, then the plain one."""
        for turn in (*calling_turns(names, {"text": SPOKEN}), {"role": "assistant", "content": SPOKEN}):
            answers = [
                {"role": "tool", "tool_call_id": call_id(n), "name": name, "content": MARKER.format(n)}
                for n, name in enumerate(names)
            ]
            text = rendered(self.tokenizer, [QUESTION, turn, *answers], for_completion=True)
            frame = None if text is None else self._frame_in(text, len(names), "tool_calls" in turn)
            if frame is not None:
                yield frame
        pieces = [OPENING, *[CLOSING + OPENING] * (len(names) - 1), CLOSING + "\n"]
        yield Frame((), tuple(map(self._structure, pieces)))

    def _frame_in(self, text: str, count: int, with_calls: bool) -> Frame | None:
        """The frame in a rendered conversation; None if the turn or the answers are not found in it.

        The model's turn ends at the first end-of-turn token after its text or, if the template writes none,
        after its last call or its text.
        """
        is_json = ESCAPED_MARKER.format(0) in text
        markers = [(ESCAPED_MARKER if is_json else MARKER).format(n) for n in range(count)]
        places = [text.find(marker) for marker in markers]
        spoken = text.rfind(SPOKEN, 0, max(places[0], 0))
        if spoken < 0 or places != sorted(places) or places[0] < 0:
            return None
        start = spoken + len(SPOKEN)
        ends = [(at, stop) for stop in self._stops if (at := text.find(stop, start, places[0])) >= 0]
        closing: tuple[int, ...] = ()
        if ends:
            at, stop = min(ends)
            start, closing = at + len(stop), (self._stops[stop],)
        elif with_calls:
            end = re.compile(self._call_end).search(text, start, places[0])
            if end is None:
                return None
            start = end.end()
        parts = re.split("|".join(map(re.escape, markers)), text[start:])
        if len(parts) != count + 1:
            return None
        return Frame(closing, tuple(map(self._structure, parts)), is_json)

    def _structure(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False).input_ids)

    def plain(self, text: str) -> tuple[int, ...]:
        """Token ids of a text that never becomes a special token, without tokens that the model lacks."""
        ids = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids
        return self.policy.known(ids)

    def beginning(self, text: str, room: int) -> tuple[int, ...]:
        """The first tokens of `plain(text)`: at least `room` of them, if the text has as many.

        A text that is much longer is not tokenised to its end, because text far behind these tokens does not
        change them.
        """
        wanted = 2 * max(0, room) + MARGIN_TOKENS
        size = CHARACTERS_OF_ONE * wanted
        while len(ids := self.plain(text[:size])) < wanted and size < len(text):
            size *= 4
        return ids


def tool_format(tokenizer: PreTrainedTokenizerBase) -> ToolFormat:
    """The format in which the model writes calls: that of its chat template, or Hermes if it writes none.

    Raises ConfigError if the template's format cannot be read.
    """
    try:
        return find_format(lambda messages: rendered(tokenizer, messages)) or HERMES
    except UnreadableFormat as error:
        hint = "Train without tools, or use a model whose chat template writes a readable format."
        raise ConfigError(str(error), hint=hint) from error


def _fair(lengths: Sequence[int], room: int) -> list[int]:
    """Tokens to keep of each answer, at most `room` in total: all of short ones, equal shares of long
    ones."""
    kept = [0] * len(lengths)
    order = sorted(range(len(lengths)), key=lambda place: lengths[place])
    for done, place in enumerate(order):
        kept[place] = min(lengths[place], room // (len(lengths) - done))
        room -= kept[place]
    return kept
