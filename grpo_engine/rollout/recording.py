"""Scored groups → the records and events that people read.

A record also has the prompt's messages, as positions in the rendered prompt, and the row's other fields.
Long values are cut, to `MAX_REFERENCE_CHARACTERS` together.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grpo_engine.config.messages import text_of
from grpo_engine.contract.events import RolloutsRecorded, Split
from grpo_engine.contract.records import (
    CompletionRecord,
    Episode,
    EpisodeTurn,
    GroupRecord,
    PromptMessage,
    ToolAnswer,
    ToolTurn,
)
from grpo_engine.objective.types import Completion, Prompt, ScoredGroup

EVENT_BYTES = 4 * 2**20
"""Maximum bytes of a rollouts event, unless its first group alone is larger; well below `MAX_LINE_BYTES`."""
MAX_REFERENCE_CHARACTERS, MAX_VALUE_CHARACTERS = 8000, 2000
"""Maximum characters of all fields of a row together, and of each field."""
MAX_FIELDS, MAX_NAME_CHARACTERS = 32, 64
MAX_CONTENT_CHARACTERS = 4000
"""Maximum characters of a message's content if the chat template changed it."""
MAX_TURN_CHARACTERS, MAX_TURNS_CHARACTERS = 2000, 64_000
"""Maximum characters of each text in a completion's turns, and of all of them together."""


def rollouts(
    step: int, scored: Sequence[ScoredGroup], split: Split = "train", *, name: str = "", offset: int = 0
) -> Iterator[RolloutsRecorded]:
    """A step's groups as events of bounded size. `name`: a retention set, whose first group is `offset`."""
    groups: list[GroupRecord] = []
    first = num_bytes = 0

    def event() -> RolloutsRecorded:
        place = first + offset
        return RolloutsRecorded(step=step, split=split, name=name, first=place, groups=tuple(groups))

    for position, group in enumerate(scored):
        recorded = record(group)
        size = len(recorded.model_dump_json().encode())
        if groups and num_bytes + size > EVENT_BYTES:
            yield event()
            groups, first, num_bytes = [], position, 0
        groups.append(recorded)
        num_bytes += size
    yield event()


def record(scored: ScoredGroup) -> GroupRecord:
    """The group as stored and displayed."""
    group = scored.group
    return GroupRecord(
        row=group.prompt.row,
        prompt=group.prompt.text,
        messages=tuple(messages_of(group.prompt)),
        reference=reference_of(group.prompt.item),
        has_signal=scored.has_signal,
        completions=tuple(
            CompletionRecord(
                text=completion.text,
                token_ids=completion.token_ids,
                reward=score.reward,
                parts=score.parts,
                errors=score.errors,
                feedback=score.feedback,
                explanations=score.explanations,
                advantage=advantage,
                finish_reason=completion.finish_reason,
                policy_version=completion.policy_version,
                turns=completion.turns,
                episode=episode_of(completion),
                tool_turns=tuple(tool_turns_of(completion)),
            )
            for completion, score, advantage in zip(
                group.completions, scored.scores, scored.advantages, strict=True
            )
        ),
    )


def episode_of(completion: Completion) -> Episode | None:
    """The completion's episode, bounded, with the turn that its environment did not answer."""
    episode = completion.episode
    if episode is None:
        return None
    limit = _limit(sum(2 + len(turn.answers) for turn in episode.turns) + 1)
    last = completion.text if completion.answer is None else completion.answer
    is_answered = completion.turns == len(episode.turns)
    turns = [_bounded(turn, limit) for turn in episode.turns]
    shown = {"turns": tuple(turns), "unanswered": "" if is_answered else _cut(last, limit)}
    return episode.model_copy(update=shown)


def tool_turns_of(completion: Completion) -> Iterator[ToolTurn]:
    """The completion's turns with tools, bounded."""
    limit = _limit(sum(1 + len(turn.answers) for turn in completion.tool_turns))
    for turn in completion.tool_turns:
        yield ToolTurn(text=_cut(turn.text, limit), answers=_bounded_answers(turn.answers, limit))


def _bounded(turn: EpisodeTurn, limit: int) -> EpisodeTurn:
    texts = {"action": turn.action[:limit], "observation": turn.observation[:limit]}
    return turn.model_copy(update={**texts, "answers": _bounded_answers(turn.answers, limit)})


def _bounded_answers(answers: Sequence[ToolAnswer], limit: int) -> tuple[ToolAnswer, ...]:
    return tuple(each.model_copy(update={"text": _cut(each.text, limit)}) for each in answers)


def _limit(num_texts: int) -> int:
    """Maximum characters per text if a completion has this number of texts."""
    return min(MAX_TURN_CHARACTERS, MAX_TURNS_CHARACTERS // max(1, num_texts))


def messages_of(prompt: Prompt) -> Iterator[PromptMessage]:
    """The prompt's messages as positions in its rendered text; none for a prompt without a template."""
    place = 0
    for message in prompt.conversation.get("messages", ()):
        role, content = str(message["role"]), text_of(message) or _calls(message)
        start = prompt.text.find(content, place)
        if start < 0:  # most templates strip whitespace
            content = content.strip()
            start = prompt.text.find(content, place)
        if start < 0:
            yield PromptMessage(role=role, content=_cut(content, MAX_CONTENT_CHARACTERS))
        else:
            place = start + len(content)
            yield PromptMessage(role=role, start=start, end=place)


def _calls(message: Mapping[str, Any]) -> str:
    """The tool calls of a message without content."""
    calls = message.get("tool_calls")
    return json.dumps(calls, ensure_ascii=False) if calls else ""


def reference_of(item: Mapping[str, Any]) -> dict[str, Any]:
    """The row's fields beside its prompt; a value that is too long becomes the beginning of its text."""
    found: dict[str, Any] = {}
    left = MAX_REFERENCE_CHARACTERS
    for name, value in list(item.items())[:MAX_FIELDS]:
        if name == "prompt":
            continue
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        limit = min(left, MAX_VALUE_CHARACTERS)
        found[name[:MAX_NAME_CHARACTERS]] = value if len(text) <= limit else _cut(text, limit)
        left -= min(len(text), limit)
    return found


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text):,} characters)"
