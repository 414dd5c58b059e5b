"""Doubts about a run whose reward rises: few rows, longer completions, a collapse, levels that differ."""

from typing import Any

import pytest

from service.jobs.diagnosis.rules import diagnose
from service.jobs.diagnosis.run import Run
from service.jobs.model.states import JobState
from tests.service.job_samples import GRADER, expanded
from tests.service.jobs.diagnosis.runs import (
    BASELINE,
    SOLVED,
    changed,
    evaluated,
    group,
    metrics,
    rising,
    run,
    the,
)


def test_few_training_rows_without_held_out_rows_are_the_main_advice() -> None:
    found = diagnose(run(num_rows=6))
    (finding,) = found.findings
    assert (finding.code, finding.severity, finding.field) == (
        "few_training_rows",
        "warning",
        "training_file",
    )
    assert found.summary == finding.cause
    assert finding.cause == (
        "The training file has only 6 rows, which the model may memorise, "
        "and no held-out rows measure other prompts."
    )


@pytest.mark.parametrize(("num_held_out", "severity"), [(1, "warning"), (16, "warning"), (200, "info")])
def test_enough_held_out_rows_that_rise_make_few_training_rows_harmless(
    num_held_out: int, severity: str
) -> None:
    rows = evaluated(metrics(), (0.1, 0.2), (0.1, 0.2), num_rows=num_held_out)
    (finding,) = diagnose(run(rows, evaluation=BASELINE, num_rows=49)).findings
    assert (finding.code, finding.severity) == ("few_training_rows", severity)
    few = "1 held-out row is" if num_held_out == 1 else f"{num_held_out} held-out rows are"
    assert f"{few} too few" in finding.cause or severity == "info"


def test_a_rising_reward_for_one_answer_to_all_rows_is_not_a_good_run() -> None:
    rows = evaluated(metrics(), (0.1, 0.2), (0.1, 0.2))
    rows[-1]["eval/most_frequent_answer"] = 0.96
    found = diagnose(run(rows, evaluation=BASELINE))
    assert [f"{one.severity} {one.code}" for one in found.findings] == ["warning same_answer"]
    assert found.summary.startswith("The model gives 96% of the held-out rows the same answer")
    assert [one.value for one in found.findings[0].compared] == [0.96, 0.45]


def test_a_fallen_reward_names_the_learning_rate_also_beside_the_same_answer() -> None:
    rows = evaluated(metrics(reward=lambda share: 0.8 if share < 0.5 else 0.3), (-0.3, -0.1), (-0.3, -0.1))
    rows[-1]["eval/most_frequent_answer"] = 0.96
    first, second = diagnose(run(rows, evaluation=BASELINE)).findings
    assert (first.code, changed(first)) == ("reward_fell", {"learning_rate": 3.3e-06})
    assert (second.code, second.patch) == ("same_answer", None)
    assert "lower the learning rate" in second.advice


def test_one_answer_that_exploits_the_grader_is_named_and_not_blamed_on_the_learning_rate() -> None:
    rows = evaluated(metrics(), (0.3, 0.4), (-0.2, -0.1), (-0.2, -0.1))
    rows[-1]["eval/most_frequent_answer"] = 0.96
    method = expanded()
    method["reinforcement"]["eval_grader"] = GRADER
    found = diagnose(run(rows, evaluation=BASELINE, method=method, frequent_answer='"?"')).findings
    first, second = found[:2]
    assert (first.code, second.code, second.patch) == ("not_held_out", "same_answer", None)
    assert second.cause == 'The model gives 96% of the held-out rows the same answer, "?".'
    assert "learning rate" not in first.advice + second.advice


@pytest.mark.parametrize(("share", "reward"), [(0.89, 0.45), (1.0, 0.95)])
def test_a_frequent_or_right_answer_casts_no_doubt(share: float, reward: float) -> None:
    rows = evaluated(metrics(), (0.1, 0.2), (0.1, 0.2))
    rows[-1] |= {"eval/most_frequent_answer": share, "eval/reward": reward}
    assert diagnose(run(rows, evaluation=BASELINE)).findings == []


def test_a_task_that_was_solved_before_training_needs_harder_rows_and_not_more_steps() -> None:
    running = run(metrics(5), evaluation=SOLVED, state=JobState.RUNNING, total_steps=50)
    for found in (running, run(metrics(reward=0.9, reward_std=0.1), evaluation=SOLVED)):
        (finding,) = diagnose(found).findings
        assert (finding.code, finding.severity, finding.patch) == ("already_solved", "warning", None)
        assert finding.cause == (
            "The model already solved this before training (held-out reward 0.98 of 1, greedy), "
            "so training can hardly improve it."
        )
        assert finding.advice.startswith("Use harder rows, or a reward")


@pytest.mark.parametrize(("spread", "later"), [(0.6, 0.97), (0.1, 1.02)])
def test_a_reward_that_can_be_above_one_is_not_solved_near_one(spread: float, later: float) -> None:
    found = run(metrics(reward=later), evaluation={"baseline": {**SOLVED["baseline"], "reward_std": spread}})
    assert "already_solved" not in {finding.code for finding in diagnose(found).findings}


def test_a_nearly_solved_task_that_training_improved_is_a_good_run() -> None:
    rows = evaluated(metrics(), (0.01, 0.02), (0.01, 0.02), start=0.98)
    assert diagnose(run(rows, evaluation=SOLVED)).findings == []


def test_a_fall_over_few_held_out_rows_says_how_many_a_verdict_needs() -> None:
    rows = evaluated(metrics(), (-0.4, -0.1), (-0.4, -0.1), num_rows=30)
    finding = the(run(rows, evaluation=BASELINE), "few_held_out_rows")
    assert finding.cause == (
        "The held-out reward fell from 0.3 to 0.05, but 30 held-out rows are too few for a verdict."
    )
    assert [one.value for one in finding.compared] == [30, 50]
    enough = evaluated(metrics(), (-0.4, -0.1), (-0.4, -0.1), num_rows=50)
    codes = [one.code for one in diagnose(run(enough, evaluation=BASELINE)).findings]
    assert "few_held_out_rows" not in codes


def test_a_job_without_signal_whose_reward_fell_before_is_advised_a_lower_learning_rate() -> None:
    rows = evaluated(metrics(reward=0.4), (-0.3, -0.1), (-0.3, -0.1))
    failure = {"code": "no_signal", "message": "20 steps in a row without signal", "hint": "", "evidence": []}
    wrong = [group(0.0, 0.0, step=step) for step in range(50, 61)]
    (finding, *_) = diagnose(run(rows, *wrong, evaluation=BASELINE, failure=failure)).findings
    assert (finding.code, finding.severity) == ("no_signal", "error")
    assert finding.cause == (
        "The held-out reward fell from 0.3 (step 0) to 0.1 (step 60): the policy became worse."
    )
    assert list(changed(finding)) == ["learning_rate"]


def test_fifty_training_rows_are_not_few() -> None:
    assert diagnose(run(num_rows=50)).findings == []


def test_a_short_run_without_any_reward_is_advised_about_its_task_and_not_to_train_longer() -> None:
    wrong = [group(0.0, 0.0, step=step) for step in range(1, 11)]
    found = run(metrics(8), *wrong)
    (finding,) = diagnose(found).findings
    assert (finding.code, finding.field) == ("few_signals", "method.reinforcement.grader")
    assert finding.patch is None
    assert finding.advice == (
        "Test the grader on a right answer. If that earns a reward, start with supervised fine-tuning, use "
        "easier prompts, or reward partial progress."
    )
    assert finding.cause.endswith("the model cannot do this task yet, or the grader rejects right answers.")
    for other in (run(metrics(8), *wrong[:9]), run(metrics(8), *wrong, group(0.0, 1.0))):
        assert [one.code for one in diagnose(other).findings] == ["too_few_steps"]


def test_one_lucky_answer_in_a_short_run_does_not_make_longer_training_the_advice() -> None:
    groups = [group(0.0, 0.0, step=step) for step in range(1, 20)]
    (finding,) = diagnose(run(metrics(8), *groups, group(0.0, 1.0))).findings
    assert finding.code == "few_signals"
    assert finding.cause.startswith("In almost every group no completion gets a reward: the model cannot do")


def test_cut_completions_that_are_all_wrong_are_read_before_they_get_longer() -> None:
    rows = metrics(**{"completions/clipped_ratio": 0.98})
    for row in rows:
        row["reward"] = 0.0
    finding = the(run(rows), "truncation")
    assert finding.advice.endswith("allow more tokens; if it is noise, train supervised first.")


def test_groups_without_signal_do_not_say_that_an_improved_model_cannot_do_its_task() -> None:
    rows = evaluated(metrics(frac_reward_zero_std=0.9), (0.1, 0.2), (0.1, 0.2))
    groups = [group(0.0, 0.0)] * 7 + [group(0.0, 1.0)] * 3
    (finding,) = diagnose(run(rows, *groups, evaluation=BASELINE)).findings
    assert (finding.code, finding.severity) == ("few_signals", "info")
    assert finding.cause == "In 7 of 10 groups no completion gets a reward; such groups give no signal."


def test_the_last_steps_of_a_short_run_are_compared_without_its_first() -> None:
    rows = metrics(
        20,
        **{
            "reward_std": 0.2,
            "completions/reward_length_correlation": 0.9,
            "completions/mean_length": lambda share: 40.0 if share > 0.3 else 10.0,
        },
    )
    finding = the(run(rows), "length_hacking")
    assert [(one.label, one.value) for one in finding.compared] == [
        ("completions/mean_length, step 1", 10.0),
        ("completions/mean_length, steps 11–20", 40.0),
    ]


LONGER: dict[str, Any] = {
    "completions/reward_length_correlation": 0.05,
    "completions/mean_length": rising(20, 60),
}


def test_a_reward_that_rises_with_the_length_is_a_question_and_not_an_accusation() -> None:
    rows = evaluated(metrics(**LONGER), (0.1, 0.2), (0.1, 0.2))
    found = diagnose(run(rows, evaluation=BASELINE))
    (finding,) = found.findings
    assert (finding.code, finding.severity, finding.patch) == ("longer_completions", "info", None)
    assert [round(one.value) for one in finding.compared] == [24, 54]
    assert found.summary.endswith(finding.cause)


@pytest.mark.parametrize(
    "changed",
    [
        {"completions/reward_length_correlation": -0.05},
        {"completions/mean_length": rising(20, 28)},
        {"reward": 0.4},
    ],
)
def test_longer_completions_need_growth_a_rise_and_a_positive_correlation(changed: Any) -> None:
    assert "longer_completions" not in {
        one.code for one in diagnose(run(metrics(**(LONGER | changed)))).findings
    }


def test_rewards_of_all_or_nothing_that_correlate_with_length_are_a_question_too() -> None:
    rows = metrics(**(LONGER | {"completions/reward_length_correlation": 0.9}))
    for row in rows:
        row["reward_std"] = (row["reward"] * (1 - row["reward"])) ** 0.5
    assert the(run(rows), "longer_completions").severity == "info"


def test_the_parts_of_a_grader_show_which_one_paid() -> None:
    parts = {"rewards/a/mean": 0.4, "rewards/b/mean": rising(0.0, 1.0), "rewards/b/std": 0.1}
    finding = the(run(metrics(**LONGER, **parts)), "longer_completions")
    assert finding.evidence[-1] == "steps 1–10: rewards/b/mean 0.0917; steps 41–60: rewards/b/mean 0.842"


def collapsed(**changed: Any) -> Run:
    """A run whose held-out reward rose a little before its policy collapsed."""
    entropy = rising(1.0, 0.0)
    values = {"frac_reward_zero_std": 0.9, "entropy": lambda share: max(0.02, entropy(3 * share)), **changed}
    rows = evaluated(metrics(**values), (0.01, 0.08), (0.01, 0.08))
    between = [group(0.5, 0.5)] * 4
    return run(rows, *between, evaluation=BASELINE)


def test_a_collapse_is_a_problem_even_if_the_held_out_reward_rose() -> None:
    found = diagnose(collapsed(reward=rising(0.45, 0.5)))
    assert (found.findings[0].code, found.findings[0].severity) == ("entropy_collapse", "warning")
    assert [round(one.value, 2) for one in found.findings[0].compared] == [0.85, 0.02]


def test_a_policy_far_from_the_reference_has_collapsed_for_its_learning_rate() -> None:
    finding = the(collapsed(reward=rising(0.45, 0.5), kl=1.0), "entropy_collapse")
    assert changed(finding) == {"learning_rate": 3.3e-06}


def test_a_run_that_gained_much_has_reached_its_maximum() -> None:
    found = diagnose(collapsed(reward=rising(0.2, 0.6)))
    assert [one.severity for one in found.findings] == ["info"]
    assert found.summary.startswith("Held-out reward (greedy) rose")


def test_the_suggested_learning_rate_is_one_that_can_work() -> None:
    fallen = metrics(reward=lambda share: 0.8 if share < 0.5 else 0.3)
    finding = the(run(fallen, method=expanded(learning_rate=1.0)), "reward_fell")
    assert changed(finding) == {"learning_rate": 1e-3}


def test_a_sampled_training_reward_below_the_greedy_one_is_explained() -> None:
    rows = evaluated(metrics(reward=rising(0.05, 0.2)), (0.4, 0.6), (0.4, 0.6))
    assert diagnose(run(rows, evaluation=BASELINE)).summary.endswith(
        "The training reward (0.172) is the mean of answers sampled at T = 1, so it is lower: "
        "compare changes, not levels."
    )


def test_length_hacking_is_found_although_completions_soon_reach_their_limit() -> None:
    correlation = {"completions/reward_length_correlation": lambda share: 0.9 if share <= 1 / 6 else 0.0}
    lengths = {"completions/mean_length": lambda share: min(90.0, 20 + 600 * share)}
    (finding,) = diagnose(run(metrics(**correlation, **lengths))).findings
    assert (finding.code, finding.field, finding.patch) == (
        "length_hacking",
        "method.reinforcement.grader",
        None,
    )
    assert finding.cause == (
        "The reward grows with length: completions grew from 30 to 90 tokens, "
        "the reward from 0.215 to 0.701 (correlation 0.9 in steps 1–10)."
    )


def test_a_reward_that_rose_and_fell_to_nothing_far_from_the_reference_broke() -> None:
    values: dict[str, Any] = {
        "reward": lambda share: 0.2 + share if share < 0.5 else 0.0,
        "kl": lambda share: 0.01 if share < 0.5 else 1.0,
    }
    (finding,) = diagnose(run(metrics(**values))).findings
    assert (finding.code, changed(finding)) == ("learning_rate_too_high", {"learning_rate": 3.3e-06})
    assert [round(one.value, 1) for one in finding.compared] == [0.6, 0.0]
    assert finding.evidence[-1] == ("step 60: 50 nats per completion away from the reference, limit 10")
