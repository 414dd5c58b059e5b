"""Findings about environments and tools: failed sessions of short runs, missing rewards, failed calls."""

from dataclasses import replace

import pytest

from grpo_engine.objective.metrics import finite, reward_metrics
from service.jobs.diagnosis.rules import diagnose
from service.jobs.model.states import JobState
from tests.service.job_samples import expanded
from tests.service.jobs.diagnosis.failed_runs import failed
from tests.service.jobs.diagnosis.runs import BASELINE, counted, evaluated, group, metrics, run, the


def test_missing_rewards_point_to_the_environments() -> None:
    method = expanded()
    method["reinforcement"]["grader"] = {"type": "environment"}
    finding = the(failed("grader_contract", method=method), "grader_contract")
    assert finding.field == "method.reinforcement.environments"


@pytest.mark.parametrize("name", ["environments/maze/failure_rate", "rewards/python/error_rate"])
def test_failures_of_a_run_that_ended_early_are_found(name: str) -> None:
    code = "failed_sessions" if name.startswith("environments") else "grader_errors"
    ended = run(metrics(4, **{name: 0.75}))
    assert the(ended, code).evidence[0] == f"steps 1–4: {name} 0.75 (limit 0.1)"
    for other in (run(metrics(4, **{name: 0.75}), state=JobState.RUNNING), run(metrics(4, **{name: 0.05}))):
        assert code not in [one.code for one in diagnose(other).findings]


def test_a_run_without_a_scored_completion_gets_the_failures_own_advice() -> None:
    unscored = counted([group(None, None, step=1)])
    finding = the(failed("no_signal", groups=unscored), "no_signal")
    assert finding.advice == "the hint"


def test_a_run_whose_tool_calls_failed_until_it_had_no_signal_gets_the_failures_own_advice() -> None:
    ended = failed("no_signal", groups=counted([group(0, 0, step=1)]))
    called = replace(ended, metrics=metrics(4, **{"tools/error_rate": 1.0}))
    finding = the(called, "no_signal")
    assert (finding.advice, finding.field) == ("the hint", "method.reinforcement.tools")


def test_a_run_whose_sessions_all_failed_has_completions_without_a_token() -> None:
    rows = metrics(4, **{"environments/maze/failure_rate": 1.0, "completions/mean_length": 0.0})
    assert the(run(rows), "failed_sessions").cause.startswith("100% of the sessions")
    rows = metrics(**{"completions/mean_length": lambda share: 0.0 if share < 0.02 else 50.0})
    assert diagnose(run(rows)).summary.startswith("Training reward rose")


@pytest.mark.parametrize("before", [True, False])
def test_an_evaluation_in_which_no_row_could_be_scored_is_left_out(before: bool) -> None:
    unscored = finite(reward_metrics([])) | {"num_rows": 200.0}
    rows = evaluated(metrics(), (0.2, 0.4), (0.3, 0.5))
    rows[29] |= {f"eval/{name}": value for name, value in unscored.items()}
    evaluation = {"baseline": {"step": 0, **unscored}} if before else BASELINE
    good = "Training reward rose" if before else "Held-out reward (greedy) rose"
    assert diagnose(run(rows, evaluation=evaluation)).summary.startswith(good)


@pytest.mark.parametrize("name", ["tools", "environments"])
def test_completions_of_several_turns_may_have_reached_the_limit_of_turns(name: str) -> None:
    method = expanded()
    method["reinforcement"][name] = {"tools": [{"type": "python"}], "environments": {"maze": {}}}[name]
    rows = metrics(reward=0.4, **{"completions/clipped_ratio": 1.0})
    finding = the(run(rows, method=method), "truncation")
    assert finding.cause.startswith("Many completions are cut at max_completion_tokens or max_turns (100%")
    assert finding.advice.startswith("Allow more tokens or turns, or leave")


def test_failed_tool_calls_show_their_share_and_the_newest_answer() -> None:
    answers = [{"name": "search", "text": "Error: status 500\nKeyError", "failed": True}]
    answers += [{"name": "", "text": "Error: the call is not JSON", "failed": True}]
    called = group(0.5, tool_turns=[{"text": "call", "answers": answers}, {"text": "end", "answers": []}])
    finding = the(run(metrics(reward=0.4, **{"tools/error_rate": 0.75}), called), "failed_calls")
    assert finding.field == "method.reinforcement.tools"
    assert finding.cause.startswith("75% of the tool calls fail")
    assert finding.evidence == [
        "steps 41–60: tools/error_rate 0.75 (limit 0.5)",
        "1 × search, in step 60: Error: status 500 KeyError",
        "1 × unreadable call, in step 60: Error: the call is not JSON",
    ]
    few = diagnose(run(metrics(reward=0.4, **{"tools/error_rate": 0.25}), called)).findings
    assert "failed_calls" not in [one.code for one in few]
