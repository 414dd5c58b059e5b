"""Runs that went wrong in one way each: metrics, groups and failures as an engine leaves them."""

import random
from collections.abc import Callable, Mapping
from typing import Any

from service.jobs.diagnosis.facts import counted
from service.jobs.diagnosis.findings import DiagnosisFinding
from service.jobs.diagnosis.rules import diagnose
from service.jobs.diagnosis.run import Groups, Run
from service.jobs.model.states import JobState
from tests.service.job_samples import expanded

NUM_STEPS = 60
HEALTHY = {
    "loss": 0.0,
    "reward": 0.5,
    "reward_std": 0.4,
    "frac_reward_zero_std": 0.2,
    "kl": 0.01,
    "entropy": 1.0,
    "grad_norm": 0.5,
    "clip_ratio/region_mean": 0.02,
    "completions/mean_length": 50.0,
    "completions/clipped_ratio": 0.02,
    "completions/reward_length_correlation": 0.1,
}
Value = float | Callable[[float], float]
"""A number, or one of how far the run is, from 0 to 1."""


def rising(low: float, high: float) -> Callable[[float], float]:
    return lambda share: low + (high - low) * share


def metrics(num_steps: int = NUM_STEPS, **changed: Value) -> list[dict[str, Any]]:
    """Rows with a little noise on the reward, which rises by default."""
    noise = random.Random(5)
    values: Mapping[str, Value] = {**HEALTHY, "reward": rising(0.2, 0.8), **changed}
    rows = []
    for step in range(1, num_steps + 1):
        share = step / num_steps
        row = {name: value(share) if callable(value) else value for name, value in values.items()}
        row["reward"] += noise.uniform(-0.02, 0.02)
        rows.append({"step": step, **row})
    return rows


def group(*rewards: float | None, step: int = 60, **more: Any) -> tuple[int, list[dict[str, Any]]]:
    return step, [{"reward": reward, "parts": {}, "errors": {}, **more} for reward in rewards]


def run(
    rows: list[dict[str, Any]] | None = None,
    *groups: tuple[int, list[dict[str, Any]]],
    method: dict[str, Any] | None = None,
    **more: Any,
) -> Run:
    rows = metrics() if rows is None else rows
    known: dict[str, Any] = {
        "job_id": "ftjob-1",
        "state": JobState.SUCCEEDED,
        "method": method or expanded(),
        "step": len(rows),
        "total_steps": len(rows),
        "metrics": rows,
        "groups": counted(groups) if groups else Groups(),
    }
    return Run(**(known | more))


def the(found: Run, code: str) -> DiagnosisFinding:
    """The run's finding of this code."""
    (finding,) = (one for one in diagnose(found).findings if one.code == code)
    return finding


def changed(finding: DiagnosisFinding) -> Any:
    """The hyperparameters that the patch sets; None without a patch."""
    if not finding.patch:
        return finding.patch
    return finding.patch["method"]["reinforcement"]["hyperparameters"]


BASELINE = {"baseline": {"step": 0, "reward": 0.3, "reward_std": 0.4, "num_rows": 200.0}}
"""The evaluation before training."""
SOLVED = {"baseline": {"step": 0, "reward": 0.98, "reward_std": 0.1, "num_rows": 200.0}}
"""The same for a task that the model solves already."""


def evaluated(
    rows: list[dict[str, Any]], *intervals: tuple[float, float], num_rows: int = 200, start: float = 0.3
) -> list[dict[str, Any]]:
    """The rows with evaluations every twenty steps up to the end, by the intervals of their differences.

    `start`: the reward before training.
    """
    for index, (low, high) in enumerate(reversed(intervals)):
        difference = (low + high) / 2
        rows[-1 - 20 * index] |= {
            "eval/reward": start + difference,
            "eval/reward_std": 0.4,
            "eval/num_rows": float(num_rows),
            "eval/difference": difference,
            "eval/difference_low": low,
            "eval/difference_high": high,
            "eval/compared_rows": float(num_rows),
        }
    return rows


def errors(code: str) -> dict[str, Any]:
    return {"errors": {"exact": {"code": code, "message": "no such field"}}}


def named_error_rate(rate: float) -> dict[str, Value]:
    return {"rewards/exact/error_rate": rate, "rewards/exact/std": 0.1, "rewards/exact/mean": 0.5}


POOR: dict[str, tuple[Run, str, Any]] = {
    "all groups are all wrong": (
        run(metrics(reward=0.0, frac_reward_zero_std=0.97), group(0, 0), group(0, 0), group(0, 1)),
        "few_signals",
        {"group_size": 16},
    ),
    "all groups are all wrong and all completions are cut": (
        run(
            metrics(**{"reward": 0.0, "frac_reward_zero_std": 0.97, "completions/clipped_ratio": 0.98}),
            group(0, 0),
            group(0, 0),
            group(0, 1),
        ),
        "truncation",
        {"max_completion_tokens": 32},
    ),
    "all groups are all right": (
        run(
            metrics(reward=rising(0.6, 1.0), frac_reward_zero_std=0.97), group(1, 1), group(1, 1), group(0, 1)
        ),
        "few_signals",
        None,
    ),
    "the held-out rows were solved before training": (
        run(evaluated(metrics(reward=0.97), (-0.01, 0.01), (-0.01, 0.01), start=0.98), evaluation=SOLVED),
        "already_solved",
        None,
    ),
    "the training rows were solved from the start": (run(metrics(reward=0.97)), "already_solved", None),
    "some groups are all wrong and some all right": (
        run(metrics(frac_reward_zero_std=0.9), group(1, 1), group(0, 0)),
        "few_signals",
        {"dynamic_sampling": 3},
    ),
    "the reward stays where it was": (run(metrics(reward=0.4)), "reward_flat", {"learning_rate": 3e-5}),
    "the reward falls from its best": (
        run(metrics(reward=lambda share: 0.8 if share < 0.5 else 0.3)),
        "reward_fell",
        {"learning_rate": 3.3e-06},
    ),
    "held-out rows gain nothing": (
        run(evaluated(metrics(), (-0.05, 0.03), (-0.04, 0.04)), evaluation=BASELINE),
        "not_held_out",
        None,
    ),
    "held-out rows lose what they had gained": (
        run(evaluated(metrics(), (0.3, 0.4), (0.0, 0.1), (0.0, 0.1)), evaluation=BASELINE),
        "not_held_out",
        {"early_stopping": {"patience": 3, "min_improvement": 0.0}},
    ),
    "held-out rows lose, and so does training": (
        run(evaluated(metrics(reward=0.4), (-0.2, -0.1), (-0.2, -0.1)), evaluation=BASELINE),
        "reward_fell",
        {"learning_rate": 3.3e-06},
    ),
    "the policy runs away": (run(metrics(kl=rising(0.0, 0.5))), "kl_explosion", {"beta": 0.08}),
    "the policy runs away at a rate that no adapter bears": (
        run(metrics(kl=rising(0.0, 0.5)), method=expanded(learning_rate=0.5)),
        "learning_rate_too_high",
        {"learning_rate": 1e-3},
    ),
    "the entropy collapses": (
        run(
            metrics(reward=0.4, frac_reward_zero_std=0.9, entropy=lambda share: 1.0 if share < 0.3 else 0.02)
        ),
        "entropy_collapse",
        {"epsilon_high": 0.28},
    ),
    "the entropy collapses under a raised clip": (
        run(
            metrics(reward=0.4, frac_reward_zero_std=0.9, entropy=lambda share: 1.0 if share < 0.3 else 0.02),
            method=expanded(epsilon_high=0.3),
        ),
        "entropy_collapse",
        {"learning_rate": 3.3e-06},
    ),
    "completions are cut and grow": (
        run(metrics(**{"completions/clipped_ratio": 0.7, "completions/mean_length": rising(20, 90)})),
        "truncation",
        {"max_completion_tokens": 32},
    ),
    "the grader fails": (
        run(metrics(**named_error_rate(0.3)), group(None, 1, **errors("invalid_variable_error"))),
        "grader_errors",
        None,
    ),
    "the grader is slow": (
        run(metrics(**named_error_rate(0.3)), group(None, 1, **errors("unresponsive_reward_error"))),
        "grader_errors",
        {"grader_timeout_seconds": 60.0},
    ),
    "sessions of an environment fail": (
        run(
            metrics(**{"environments/words/failure_rate": 0.3, "environments/grid/failure_rate": 0.05}),
            group(None, 1, episode={"environment": "words", "failure": "no answer within 30 s"}),
        ),
        "failed_sessions",
        None,
    ),
    "a part of the grader never fires": (
        run(
            metrics(
                **{"rewards/a/std": 0.4, "rewards/a/mean": 0.5, "rewards/b/std": 0.0, "rewards/b/mean": 0.0}
            )
        ),
        "silent_part",
        None,
    ),
    "length is paid for": (
        run(
            metrics(
                **{
                    "completions/reward_length_correlation": 0.9,
                    "completions/mean_length": rising(20, 90),
                }
            )
        ),
        "length_hacking",
        None,
    ),
    "updates are clipped": (
        run(metrics(**{"clip_ratio/region_mean": 0.4})),
        "learning_rate_too_high",
        {"learning_rate": 3.3e-06},
    ),
    "there are too few steps": (run(metrics(5)), "too_few_steps", {"n_steps": 100}),
    "the steps do not show a rise yet": (
        run(metrics(reward=lambda share: 0.4 + 0.3 * (round(share * 60) % 2))),
        "more_steps",
        {"n_steps": 170},
    ),
    "few rows are held out": (
        run(evaluated(metrics(), (-0.1, 0.4), (-0.1, 0.4), num_rows=16), evaluation=BASELINE),
        "more_rows",
        None,
    ),
    "the limit of held-out rows is too low": (
        run(
            evaluated(metrics(), (-0.1, 0.4), (-0.1, 0.4), num_rows=16),
            evaluation=BASELINE,
            method=expanded(eval_samples=16),
        ),
        "more_rows",
        {"eval_samples": 83},
    ),
}
"""What went wrong → the run, the finding's code, the hyperparameters that its patch sets."""
