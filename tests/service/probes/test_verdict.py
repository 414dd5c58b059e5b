"""What a probe's counts mean, as the sentence that a user reads."""

from typing import Any

import pytest

from grpo_engine.config.job import ReinforcementHyperparameters
from grpo_engine.contract.events import Probed
from service.probes.verdict import judge

SETTINGS = ReinforcementHyperparameters.model_validate({"max_completion_tokens": 256, "group_size": 4})


def facts(**more: Any) -> Probed:
    """64 completions of 16 prompts, a third of them right, in ten groups beside wrong ones."""
    usual = {
        "prompts": 16,
        "completions": 64,
        "passed": 22,
        "groups_with_signal": 10,
        "groups_solved": 2,
        "truncated": 0,
        "grader_errors": 0,
        "mean_reward": 0.34,
        "highest_reward": 1.0,
        "completion_tokens": 6400,
        "sample_seconds": 10.0,
        "score_seconds": 0.1,
        "peak_memory_bytes": 10**9,
    }
    return Probed.model_validate(usual | more)


def failed(sessions: int) -> dict[str, Any]:
    return {"failed_sessions": sessions, "session_failure": "no answer within 30 s"}


NOTHING: dict[str, Any] = {
    "passed": 0,
    "groups_with_signal": 0,
    "groups_solved": 0,
    "mean_reward": 0.0,
    "highest_reward": 0.0,
}
CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "differences": (
        {},
        "yes",
        "In 10 of 16 groups the rewards differ, and 22 of 64 completions are right: GRPO can learn here.",
    ),
    "a reward that is never full": (
        {"passed": 0, "groups_solved": 0, "groups_with_signal": 16, "highest_reward": 0.8},
        "yes",
        "In 16 of 16 groups the rewards differ, with 0.34 on average: GRPO can learn here.",
    ),
    "nothing scored": (
        NOTHING,
        "no",
        "0 of 64 completions scored: the base model cannot do this yet; start with supervised fine-tuning.",
    ),
    "nothing scored, for lack of room": (
        NOTHING | {"truncated": 60},
        "maybe",
        "0 of 64 completions scored, but 94% of the completions were cut at 256 tokens: "
        "raise max_completion_tokens and probe again.",
    ),
    "all right": (
        {"passed": 64, "groups_with_signal": 0, "groups_solved": 16, "mean_reward": 1.0},
        "no",
        "Every completion is right already: nothing to learn; use harder prompts.",
    ),
    "all right where it could be scored": (
        {"passed": 60, "groups_with_signal": 0, "groups_solved": 16, "grader_errors": 4},
        "no",
        "Every completion is right already: nothing to learn; use harder prompts.",
    ),
    "nearly all right": (
        {"passed": 62, "groups_with_signal": 2, "groups_solved": 14, "mean_reward": 0.97},
        "no",
        "The model already solves this: 62 of 64 completions are right; use harder prompts.",
    ),
    "groups without differences": (
        {"passed": 8, "groups_with_signal": 0, "groups_solved": 2},
        "no",
        "No group of 16 had two different rewards, so there is nothing to compare; raise temperature or "
        "group_size, or use a grader that distinguishes better from worse.",
    ),
    "random text, always cut": (
        NOTHING | {"truncated": 60, "token_surprise_nats": 4.0},
        "no",
        "0 of 64 completions are right, and their text is close to random (every token is a choice among "
        "about 55): the base model cannot do this yet, and longer completions do not help; start with "
        "supervised fine-tuning.",
    ),
    "random text of which some scores by chance": (
        {"truncated": 60, "passed": 1, "groups_with_signal": 1, "token_surprise_nats": 4.0},
        "no",
        "1 of 64 completions are right, and their text is close to random (every token is a choice among "
        "about 55): the base model cannot do this yet, and longer completions do not help; start with "
        "supervised fine-tuning.",
    ),
    "sensible text, always cut": (
        NOTHING | {"truncated": 60, "token_surprise_nats": 0.7},
        "maybe",
        "0 of 64 completions scored, but 94% of the completions were cut at 256 tokens: "
        "raise max_completion_tokens and probe again.",
    ),
    "many cut": (
        {"truncated": 20},
        "maybe",
        "31% of the completions were cut at 256 tokens: raise max_completion_tokens.",
    ),
    "many episodes cut": (
        {"truncated": 20, "turns": 100},
        "maybe",
        "31% of the completions were cut at 256 tokens or at the limit of turns: "
        "raise max_completion_tokens or max_turns.",
    ),
    "few groups with signal, most too hard": (
        {"passed": 3, "groups_with_signal": 3, "groups_solved": 0},
        "maybe",
        "Only 3 of 16 groups had different rewards (in most the model never succeeds): most of the sampling "
        "would teach nothing; use easier prompts, or raise group_size.",
    ),
    "few groups with signal, most too easy": (
        {"passed": 60, "groups_with_signal": 3, "groups_solved": 12},
        "maybe",
        "Only 3 of 16 groups had different rewards (12 are solved already): most of the sampling would "
        "teach nothing; use harder prompts, or raise group_size.",
    ),
    "a grader that fails too often": (
        {"grader_errors": 40, "grader_error": "g: other_error: no such key"},
        "no",
        "The grader failed on 40 of 64 completions: g: other_error: no such key",
    ),
    "a grader that fails sometimes": (
        {"grader_errors": 12, "grader_error": "g: other_error: no such key"},
        "maybe",
        "The grader failed on 12 of 64 completions: g: other_error: no such key",
    ),
    "sessions that all fail": (
        NOTHING | {"grader_errors": 64, "mean_reward": None} | failed(64),
        "no",
        "64 of 64 sessions failed: no answer within 30 s",
    ),
    "sessions that often fail, which no job ends with": (
        {"grader_errors": 40} | failed(40),
        "maybe",
        "40 of 64 sessions failed: no answer within 30 s",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_case_has_its_sentence(case: str) -> None:
    more, can_learn, sentence = CASES[case]
    verdict = judge(facts(**more), SETTINGS)
    how = "" if "failed" in sentence else " Sampled at temperature 1."
    assert (verdict.can_learn, verdict.sentence) == (can_learn, f"{sentence}{how}")


def test_a_model_that_is_right_greedily_is_not_sent_to_supervised_training() -> None:
    settings = SETTINGS.model_copy(update={"temperature": 1.2})
    greedy = {"greedy_completions": 16, "greedy_passed": 15, "greedy_mean_reward": 0.94}
    verdict = judge(facts(**NOTHING, **greedy), settings)
    assert verdict.sentence == (
        "0 of 64 completions scored, but greedy completions did: lower temperature and probe again. "
        "Sampled at temperature 1.2; of the greedy completions, 15 of 16 are right."
    )
    assert [(one.param.rpartition(".")[2], one.value) for one in verdict.advice] == [("temperature", 0.6)]
    few = judge(facts(passed=3, groups_with_signal=3, groups_solved=0, mean_reward=0.05, **greedy), settings)
    assert [one.value for one in few.advice] == [0.6, 2]
    same = judge(facts(**NOTHING, greedy_completions=16, greedy_mean_reward=0.0), settings)
    assert [one.value for one in same.advice] == ["supervised", None]


SOLVED_GREEDILY = {"greedy_completions": 16, "greedy_passed": 16, "greedy_mean_reward": 1.0}


def test_a_model_that_is_always_right_greedily_has_little_to_learn() -> None:
    verdict = judge(facts(**SOLVED_GREEDILY), SETTINGS)
    assert (verdict.can_learn, [one.param for one in verdict.advice]) == ("maybe", ["training_file"])
    assert verdict.sentence == (
        "Without randomness the model already solves this, so a held-out reward can hardly rise: only its "
        "sampled completions can improve; use harder prompts. "
        "Sampled at temperature 1; of the greedy completions, 16 of 16 are right."
    )


def test_rewards_above_one_have_no_known_maximum() -> None:
    graded = facts(**SOLVED_GREEDILY, passed=64, mean_reward=1.2, highest_reward=2.0)
    assert judge(graded, SETTINGS).can_learn == "yes"


def test_if_nothing_was_scored_the_grader_is_always_the_reason() -> None:
    settings = SETTINGS.model_copy(update={"max_grader_error_rate": 1.0})
    none = facts(grader_errors=64, mean_reward=None, highest_reward=None, passed=0, groups_with_signal=0)
    assert judge(none, settings).can_learn == "no"
    assert judge(none, settings).advice[0].param == "method.reinforcement.grader"


@pytest.mark.parametrize(
    ("turns", "advised"), [(0, ["max_completion_tokens", "grader"]), (9, ["max_completion_tokens"])]
)
def test_cut_completions_without_a_reward_need_more_tokens(turns: int, advised: list[str]) -> None:
    """A cut episode has no reward yet, and such a job has no grader to correct."""
    error = "environment: other_error: the environment gave no reward"
    verdict = judge(facts(grader_errors=64, grader_error=error, truncated=64, turns=turns), SETTINGS)
    assert "100% of the completions were cut at 256 tokens" in verdict.sentence
    assert [each.param.rpartition(".")[2] for each in verdict.advice] == advised


@pytest.mark.parametrize(
    ("more", "params"),
    [
        (NOTHING, ["method.type", "training_file"]),
        ({"truncated": 20}, ["method.reinforcement.hyperparameters.max_completion_tokens"]),
        ({}, []),
    ],
)
def test_the_advice_names_fields_of_the_request(more: dict[str, Any], params: list[str]) -> None:
    assert [each.param for each in judge(facts(**more), SETTINGS).advice] == params


def test_advice_has_the_value_to_set_unless_that_needs_a_person() -> None:
    settings = SETTINGS.model_copy(update={"temperature": 1.3, "group_size": 40})
    same = {"passed": 8, "groups_with_signal": 0, "groups_solved": 2}
    few = {"passed": 3, "groups_with_signal": 3, "groups_solved": 0}
    values = [
        [each.value for each in judge(facts(**more), settings).advice]
        for more in (NOTHING, {"truncated": 20}, same, few)
    ]
    assert values == [["supervised", None], [512], [1.4, 64, None], [None, 64, 2]]


def test_no_value_is_advised_that_is_not_higher_than_the_current_one() -> None:
    settings = SETTINGS.model_copy(update={"temperature": 1.5, "group_size": 128})
    same = facts(passed=8, groups_with_signal=0, groups_solved=2)
    assert [each.value for each in judge(same, settings).advice] == [None, None, None]
