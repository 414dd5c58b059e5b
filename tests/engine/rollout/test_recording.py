from typing import Any

import pytest

from grpo_engine.contract.records import (
    Episode,
    EpisodeTurn,
    Explanation,
    FinishReason,
    GroupRecord,
    PromptMessage,
    Score,
    ToolAnswer,
    ToolTurn,
)
from grpo_engine.objective.types import Completion, Group, Prompt, ScoredGroup
from grpo_engine.rollout.recording import episode_of, messages_of, record, reference_of, tool_turns_of

SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": " 1 + 1? "}
RENDERED = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1 + 1?<|im_end|>\n"


def prompt(text: str = RENDERED, *messages: Any, **item: Any) -> Prompt:
    return Prompt(0, text, (1,), item, conversation={"messages": messages} if messages else {})


def content(text: str, found: PromptMessage) -> str:
    return found.content or text[found.start : found.end]


def test_messages_are_places_in_the_rendered_prompt() -> None:
    found = list(messages_of(prompt(RENDERED, SYSTEM, USER)))
    assert [(one.role, content(RENDERED, one), one.content) for one in found] == [
        ("system", "Be brief.", ""),
        ("user", "1 + 1?", ""),
    ]


def test_a_message_that_the_template_changed_is_stored_and_cut() -> None:
    found = list(messages_of(prompt("<s>…</s>", {"role": "user", "content": "é" * 9000})))
    assert found[0].content.startswith("é" * 4000 + "… (9,000 characters)")
    assert len(found[0].content) < 4100


def test_text_parts_are_joined_and_calls_of_tools_are_shown() -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "1 + "}, {"type": "text", "text": "1?"}]}
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add"}}]}
    found = list(messages_of(prompt(RENDERED, parts, call)))
    assert content(RENDERED, found[0]) == "1 + 1?"
    assert found[1].content == '[{"function": {"name": "add"}}]'


def test_a_prompt_without_a_template_has_no_messages() -> None:
    assert list(messages_of(prompt("1 + 1?"))) == []


def test_the_reference_is_the_row_without_its_prompt() -> None:
    item = {"prompt": "1 + 1?", "answer": 2, "tests": [{"call": "f"}], "level": None}
    assert reference_of(item) == {"answer": 2, "tests": [{"call": "f"}], "level": None}


@pytest.mark.parametrize("value", ["x" * 100_000, ["x" * 50_000] * 2])
def test_a_reference_is_bounded(value: Any) -> None:
    found = reference_of({f"{'field' * 50} {n}": value for n in range(100)} | {"answer": 2})
    assert len(found) <= 32
    assert sum(len(str(each)) for each in found.values()) < 10_000
    found = reference_of({f"field {n}": value for n in range(10)} | {"answer": 2})
    assert found["field 0"].endswith("characters)")
    assert len(found["field 9"]) < 30


def test_a_group_is_recorded_with_its_explanations() -> None:
    done = Completion("2", (5,), (-1.0,), FinishReason.STOP, 3)
    entry = Explanation(label="test 1 of 1: f(0)", passed=False, got="2", expected="1")
    score = Score(reward=0.0, parts={"code": 0.0}, explanations={"code": (entry,)})
    group = Group(prompt(RENDERED, SYSTEM, USER, answer=2), (done,))
    found = record(ScoredGroup(group, (score,), (0.0,), has_signal=False))
    assert found.reference == {"answer": 2}
    assert found.completions[0].explanations == {"code": (entry,)}
    assert GroupRecord.model_validate_json(found.model_dump_json()) == found


def finished(text: str, **more: Any) -> Completion:
    return Completion(text, (5,), (-1.0,), FinishReason.LENGTH, 3, **more)


def test_an_episode_is_recorded_with_the_turn_that_nothing_answered() -> None:
    turn = EpisodeTurn(action="a", observation="b", reward=0.5)
    episode = Episode(environment="words", seed=1, turns=(turn,), failure="lost")
    assert episode_of(finished("abc", turns=1, episode=episode)) == episode
    cut = episode_of(finished("abc", turns=2, answer="c", episode=episode))
    assert cut == episode.model_copy(update={"unanswered": "c"})
    first = episode_of(finished("c", episode=episode.model_copy(update={"turns": ()})))
    assert first is not None
    assert first.unanswered == "c"


def test_the_turns_of_a_completion_are_bounded_together() -> None:
    calls = ToolTurn(text="x" * 9000, answers=(ToolAnswer(name="f", text="y" * 9000),))
    (turn,) = tool_turns_of(finished("", tool_turns=(calls,)))
    assert (turn.text[1999:], turn.answers[0].text[1999:]) == (
        "x… (9,000 characters)",
        "y… (9,000 characters)",
    )
    turns = list(tool_turns_of(finished("", tool_turns=(calls,) * 100)))
    assert 64_000 < sum(len(each.text) + len(each.answers[0].text) for each in turns) < 70_000
    answers = (ToolAnswer(name="f", text="y" * 2000),)
    spoken = EpisodeTurn(action="x" * 2000, observation="y" * 2000, answers=answers)
    episode = episode_of(
        finished("", turns=100, episode=Episode(environment="e", seed=1, turns=(spoken,) * 100))
    )
    assert episode is not None
    assert sum(len(each.action) + len(each.observation) for each in episode.turns) < 44_000
    assert sum(len(each.answers[0].text) for each in episode.turns) < 24_000


def test_a_record_from_before_messages_is_still_read() -> None:
    old = {"row": 3, "prompt": "p", "has_signal": False, "completions": []}
    found = GroupRecord.model_validate(old)
    assert (found.messages, found.reference) == ((), {})
