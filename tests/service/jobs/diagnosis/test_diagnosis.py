"""The findings about runs that each have one problem, and none about a good run."""

import re
from pathlib import Path
from typing import Any

import pytest

from service.jobs.diagnosis.rules import diagnose
from service.jobs.diagnosis.run import GuardWarning
from service.jobs.intake.cloning import patched
from service.jobs.model.states import JobState
from tests.service.job_samples import GRADER, METHOD, expanded, request
from tests.service.jobs.diagnosis.failed_runs import FAILED, failed
from tests.service.jobs.diagnosis.runs import (
    BASELINE,
    POOR,
    changed,
    evaluated,
    group,
    metrics,
    rising,
    run,
    the,
)

ERRORS = Path(__file__).parents[4] / "docs" / "reference" / "errors.md"


@pytest.mark.parametrize("case", POOR)
def test_a_poor_run_has_a_finding_with_cause_and_change(case: str) -> None:
    found, code, change = POOR[case]
    finding = the(found, code)
    assert changed(finding) == change
    assert finding.advice
    assert finding.field


@pytest.mark.parametrize("case", POOR)
def test_evidence_quotes_steps_and_numbers(case: str) -> None:
    found, code, _ = POOR[case]
    assert any(re.search(r"steps? \d|\d+ of \d+ steps|\d steps", line) for line in the(found, code).evidence)


@pytest.mark.parametrize("code", FAILED)
def test_a_failure_has_a_finding_with_cause_and_change(code: str) -> None:
    found, field, change = FAILED[code]
    finding = diagnose(found).findings[0]
    assert (finding.code, finding.severity, finding.field) == (code, "error", field)
    assert changed(finding) == change
    assert finding.evidence[0] == "at step 4 of 4: what happened"


def test_every_failure_of_the_errors_page_has_its_rule() -> None:
    table = ERRORS.read_text().split("## Failed jobs")[1]
    codes = set(re.findall(r'<a id="failed-(\w+)">', table)) - {"not_mergeable"}
    assert codes == set(FAILED)


@pytest.mark.parametrize("case", [*POOR, *FAILED])
def test_every_patch_makes_a_request_with_the_suggested_value(case: str) -> None:
    found = (POOR | FAILED)[case][0]
    body = {**request("file-1"), "method": found.method}
    for finding in diagnose(found).findings:
        if finding.patch:
            method = METHOD.dump_python(patched(body, finding.patch).method, mode="json")
            name = str(finding.field).rpartition(".")[2]
            assert method["reinforcement"]["hyperparameters"][name] == finding.suggested


def test_a_good_run_has_no_finding() -> None:
    found = diagnose(run(evaluated(metrics(), (0.041, 0.125), (0.041, 0.125)), evaluation=BASELINE))
    assert found.findings == []
    assert found.summary == (
        "Held-out reward (greedy) rose from 0.3 to 0.383 (95% CI +0.041 to +0.125) over 200 rows."
    )


def test_a_good_run_without_held_out_rows_says_that_only_training_is_known() -> None:
    found = diagnose(run())
    assert found.findings == []
    assert found.summary == (
        "Training reward rose from 0.262 to 0.701 (steps 1–10 and steps 41–60). "
        "No held-out rows measure other prompts."
    )


def test_a_job_without_steps_has_nothing_to_diagnose() -> None:
    found = diagnose(run([], state=JobState.QUEUED, total_steps=10))
    assert (found.findings, found.summary) == ([], "No step is done yet.")


def test_the_worst_finding_comes_first_and_is_the_summary() -> None:
    parts = {"rewards/a/std": 0.4, "rewards/b/std": 0.0}
    found = diagnose(run(metrics(reward=0.4, kl=1.0, **parts)))
    assert [finding.code for finding in found.findings] == ["kl_explosion", "silent_part"]
    assert found.summary == f"{found.findings[0].cause} (1 more below)"


def test_the_advice_for_an_unfinished_run_with_few_steps_is_to_wait() -> None:
    finding = the(run(metrics(5), state=JobState.RUNNING, total_steps=100), "too_few_steps")
    assert (finding.advice, finding.patch) == ("Wait.", None)


def test_the_limit_that_was_reached_is_doubled() -> None:
    judge = {
        "type": "score_model",
        "name": "judge",
        "model": "m",
        "input": [{"role": "user", "content": "{{sample.output_text}}"}],
        "max_calls": 50,
    }
    method = METHOD.dump_python(
        METHOD.validate_python({"type": "reinforcement", "reinforcement": {"grader": judge}}), mode="json"
    )
    finding = diagnose(failed("spend_limit", method=method)).findings[0]
    assert finding.patch == {"method": {"reinforcement": {"grader": {"max_calls": 100}}}}
    assert (finding.field, finding.current) == ("method.reinforcement.grader.max_calls", 50)


def test_stored_evidence_follows_the_message_each_line_once() -> None:
    finding = diagnose(failed("poisoned", "attempt 1: SIGKILL", "attempt 1: SIGKILL", "Killed")).findings[0]
    assert finding.evidence[1:] == ["attempt 1: SIGKILL", "Killed"]


def test_a_supervised_job_is_not_judged_by_rewards() -> None:
    method = {"type": "supervised", "supervised": {"hyperparameters": {}}}
    found = run(
        [{"step": step, "loss": 1.0} for step in range(1, 61)],
        method=METHOD.dump_python(METHOD.validate_python(method), mode="json"),
    )
    assert diagnose(found).findings == []


@pytest.mark.parametrize(
    ("settings", "longer"),
    [
        ({"n_epochs": 3}, {"n_epochs": 6}),
        ({"n_epochs": "auto"}, {"n_epochs": 2}),
        ({"n_steps": 40}, {"n_steps": 80}),
        ({"n_epochs": 30}, {"n_steps": 80}),
    ],
)
def test_a_supervised_run_whose_held_out_loss_still_fell_is_advised_to_train_longer(
    settings: dict[str, Any], longer: dict[str, Any]
) -> None:
    method = {"type": "supervised", "supervised": {"hyperparameters": settings}}
    rows = [{"step": step, "loss": 1.0} for step in range(1, 41)]
    for step, loss in ((20, 2.0), (30, 1.0), (40, 0.8)):
        rows[step - 1]["eval/loss"] = loss
    (finding,) = diagnose(run(rows, method=method)).findings
    assert (finding.code, finding.severity) == ("loss_still_falls", "info")
    assert finding.evidence == ["step 30: held-out loss 1", "step 40: held-out loss 0.8"]
    assert finding.patch == {"method": {"supervised": {"hyperparameters": longer}}}
    rows[-1]["eval/loss"] = 0.95
    assert diagnose(run(rows, method=method)).findings == []


@pytest.mark.parametrize("code", FAILED)
@pytest.mark.parametrize("kind", ["supervised", "training_free"])
def test_each_failure_of_the_other_methods_has_a_finding_too(kind: str, code: str) -> None:
    settings: dict[str, Any] = {"hyperparameters": {}} | (
        {"grader": GRADER} if kind == "training_free" else {}
    )
    method = METHOD.dump_python(METHOD.validate_python({"type": kind, kind: settings}), mode="json")
    assert diagnose(failed(code, method=method)).findings[0].code == code


def test_a_small_change_within_the_noise_is_not_a_rise() -> None:
    assert the(run(metrics(reward=lambda share: 0.4 + 0.002 * share)), "reward_flat")


def test_a_held_out_reward_that_rises_above_training_is_never_accused() -> None:
    rows = evaluated(metrics(reward=rising(0.2, 0.35)), (0.05, 0.15), (0.05, 0.15))
    assert diagnose(run(rows, evaluation=BASELINE)).findings == []


def test_an_interval_that_includes_a_comparable_gain_accuses_nothing() -> None:
    rows = evaluated(metrics(), (-0.1, 0.3), (-0.1, 0.3))
    (found,) = diagnose(run(rows, evaluation=BASELINE)).findings
    assert (found.code, found.severity) == ("more_rows", "info")
    assert [one.value for one in found.compared] == [200, 670]


def test_few_held_out_rows_accuse_nothing_even_if_none_changed() -> None:
    rows = evaluated(metrics(), (0.0, 0.0), (0.0, 0.0), num_rows=16)
    (found,) = diagnose(run(rows, evaluation=BASELINE)).findings
    assert found.code == "more_rows"


def test_a_grader_that_eval_grader_contradicts_is_to_be_changed() -> None:
    method = expanded()
    method["reinforcement"]["eval_grader"] = GRADER
    rows = evaluated(metrics(), (-0.05, 0.03), (-0.04, 0.04))
    finding = the(run(rows, evaluation=BASELINE, method=method), "not_held_out")
    assert (finding.field, finding.patch) == ("method.reinforcement.grader", None)
    assert [one.label for one in finding.compared] == ["reward, steps 41–60", "held-out reward, step 60"]


def test_evaluations_without_stored_intervals_have_those_of_unpaired_rows() -> None:
    rows = evaluated(metrics(), (-0.05, 0.03), (-0.04, 0.04))
    old = [{name: row[name] for name in row if "difference" not in name} for row in rows]
    line = the(run(old, evaluation=BASELINE), "not_held_out").evidence[-2]
    assert line == "step 60: held-out reward 0.3 over 200 rows; since step 0 -0.0784 to +0.0784 (95% CI)"


def test_the_warnings_of_a_guard_are_one_finding() -> None:
    steps = (20, 90, 147)
    guards = [GuardWarning("guard_no_signal", f"None up to step {step}. Raise it.", step) for step in steps]
    (finding,) = diagnose(run(guards=guards)).findings
    assert (finding.severity, finding.cause, finding.advice) == ("info", "None up to step 147.", "Raise it.")
    assert (finding.count, finding.first_step, finding.last_step) == (3, 20, 147)


@pytest.mark.parametrize(("last", "when"), [(60, "since step 7"), (35, "in steps 7 to 35")])
def test_a_guard_s_finding_says_how_long_its_observation_held(last: int, when: str) -> None:
    name, message = "sampling/sampling_logp_difference/mean", "They differ (limit 0.1) for 5 steps in a row"
    rows = metrics(**{name: lambda share: 0.2 if 7 <= round(60 * share) <= last else 0.0})
    guards = [GuardWarning("guard_sampler_difference", f"{message}, up to step 11. Raise it.", 11)]
    (finding,) = diagnose(run(rows, guards=guards)).findings
    assert finding.cause == f"They differ (limit 0.1) at step 11, and past the limit {when}."


def test_a_policy_that_updates_broke_is_reported_with_its_distance() -> None:
    rows = evaluated(metrics(reward=0.4), (-0.29, -0.2), (-0.29, -0.2))
    for row in rows:
        row |= {"eval/reward": 0.01} if "eval/reward" in row else {}
        row |= {"kl": 2.0 if row["step"] >= 20 else 0.0, "completions/mean_length": 10.0}
    finding = the(run(rows, evaluation=BASELINE), "reward_fell")
    assert finding.cause.endswith(
        "to 0.01 (step 60): the updates broke the policy (step 60: 20 nats per completion away from the "
        "reference, limit 10)."
    )


def test_cut_completions_that_never_earn_a_reward_say_that_nothing_was_learned() -> None:
    rows = [row | {"reward": 0.0} for row in metrics(**{"completions/clipped_ratio": 1.0})]
    cause = the(run(rows), "truncation").cause
    assert cause.startswith("Many completions are cut at max_completion_tokens (100% in steps 41–60)")
    assert cause.endswith("No completion got a reward, so nothing was learned.")


def test_guard_warnings_about_a_broken_policy_are_left_to_the_finding_about_its_cause() -> None:
    codes = ("guard_kl", "guard_no_signal", "guard_truncation", "guard_entropy")
    guards = [GuardWarning(code, "It is so. Do that.", 40) for code in codes]
    rows = evaluated(metrics(reward=0.4), (-0.3, -0.1), (-0.3, -0.1))
    found = diagnose(run(rows, evaluation=BASELINE, guards=guards)).findings
    assert [finding.code for finding in found] == ["reward_fell"]


def test_a_guard_warning_that_a_finding_covers_is_not_repeated() -> None:
    guards = [
        GuardWarning("guard_reward_plateau", "It stays.", 40),
        GuardWarning("guard_kl", "It is far.", 40),
    ]
    found = diagnose(run(metrics(reward=0.4), guards=guards)).findings
    assert [finding.code for finding in found] == ["reward_flat", "guard_kl"]


def test_a_problem_of_a_run_that_improves_is_only_information() -> None:
    (finding,) = diagnose(run(metrics(**{"completions/clipped_ratio": 0.7}))).findings
    assert (finding.code, finding.severity) == ("truncation", "info")


def test_failed_sessions_show_their_share_and_the_newest_reason() -> None:
    finding = the(POOR["sessions of an environment fail"][0], "failed_sessions")
    assert finding.cause.startswith("30% of the sessions of environment words fail;")
    assert [round(one.value, 3) for one in finding.compared] == [0.3, 0.1]
    assert finding.evidence == [
        "steps 41–60: environments/words/failure_rate 0.3 (limit 0.1)",
        "2 × words, in step 60: no answer within 30 s",
    ]


def test_a_level_near_its_limit_keeps_its_verdict() -> None:
    wavering = metrics(80, reward=0.4, **{"completions/clipped_ratio": lambda share: 0.6 - 0.15 * share})
    assert the(run(wavering), "truncation").compared[0].step == 50


def test_groups_are_counted_by_what_they_earned() -> None:
    text = run(
        metrics(), group(0, 0, step=3), group(1, 1), group(0.5, 0.5), group(0, 1, step=2)
    ).groups.text()
    assert text == (
        "steps 2–3: of 4 stored groups 3 had no signal "
        "(1 all wrong, 1 all right, 1 with equal partial rewards)"
    )


def test_with_a_settled_group_size_only_other_data_help() -> None:
    method = expanded(group_size=64)
    hard = run(metrics(frac_reward_zero_std=1.0), group(0, 0), method=method)
    assert the(hard, "few_signals").field == "training_file"


def test_rows_that_are_memorised_are_not_also_said_to_be_few() -> None:
    rows = evaluated(metrics(), (-0.05, 0.03), (-0.04, 0.04))
    found = diagnose(run(rows, evaluation=BASELINE, num_rows=24)).findings
    assert [finding.code for finding in found] == ["not_held_out"]
