"""Guards watch a run; each has a rule, a threshold and an action.

Pure functions of metrics; the training loop carries out the actions. A rule whose metric is missing in a step
(no KL at beta 0, nothing trained) neither trips nor recovers in that step.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal, Self, get_args

from pydantic import model_validator

from grpo_engine.config.hyperparameters import PositiveInt
from grpo_engine.config.recipes import problem_at
from grpo_engine.contract.records import Input

Watch = Literal[
    "kl",
    "no_signal",
    "entropy",
    "truncation",
    "grader_errors",
    "reward_plateau",
    "reward_length",
    "sampler_difference",
]


class Guard(Input):
    """One rule. It trips once, when it has held for `patience` steps in a row; it can trip again only after a
    step in which it does not hold."""

    watch: Watch
    """The metric to watch."""
    threshold: float | None = None
    """Value at which the rule trips; null: the rule's default, which the response shows."""
    patience: PositiveInt = 5
    """Consecutive steps that must meet the rule before it trips."""
    action: Literal["warn", "pause", "stop", "raise_beta"] = "warn"
    """`warn`; `pause` with a checkpoint; `stop` early with success; `raise_beta` doubles beta."""

    @model_validator(mode="before")
    @classmethod
    def _visible(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("threshold") is None and data.get("watch") in get_args(Watch):
            return {**data, "threshold": DEFAULT_THRESHOLDS[data["watch"]]}
        return data

    @model_validator(mode="after")
    def _within_reach(self) -> Self:
        highest = HIGHEST.get(self.watch)
        if highest is not None and self.limit > highest:
            raise problem_at(
                f"{self.watch} is never above {highest:g}, so the guard would never trip", "threshold"
            )
        return self

    @property
    def limit(self) -> float:
        """The threshold or its default."""
        return DEFAULT_THRESHOLDS[self.watch] if self.threshold is None else self.threshold


def default_guards() -> tuple[Guard, ...]:
    """Every rule, as a warning."""
    return tuple(Guard(watch=watch) for watch in get_args(Watch))


DEFAULT_THRESHOLDS: dict[Watch, float] = {
    "kl": 10.0,
    "no_signal": 0.8,
    "entropy": 0.1,
    "truncation": 0.5,
    "grader_errors": 0.1,
    "reward_plateau": 0.0,
    "reward_length": 0.8,
    "sampler_difference": 0.1,
}
"""kl: nats per completion (mean KL of a token × mean length). no_signal: share of groups. entropy: share of
the mean of the first START_STEPS trained steps. truncation: share of completions. grader_errors: share of a
grader's completions. reward_plateau: rise of the mean reward from one half of the last PLATEAU_STEPS steps
to the other. reward_length: correlation of reward and length. sampler_difference: mean absolute difference of
the sampler's and the trainer's log-probability of a token, in nats."""

HIGHEST: dict[Watch, float] = {"no_signal": 1, "truncation": 1, "grader_errors": 1, "reward_length": 1}
"""Largest possible values of the measures that are shares or a correlation."""
SHARES: frozenset[Watch] = frozenset({"no_signal", "truncation", "grader_errors", "entropy"})
"""Measures that are shown in percent."""

START_STEPS = 5
PLATEAU_STEPS = 100


@dataclass(frozen=True, slots=True)
class TrippedGuard:
    """A guard that has tripped."""

    guard: Guard
    step: int
    value: float

    @property
    def code(self) -> str:
        return f"guard_{self.guard.watch}"

    @property
    def message(self) -> str:
        """The observation, why it matters, and which field to change."""
        seen, why, change = _TEXTS[self.guard.watch]
        unit, factor = ("%", 100) if self.guard.watch in SHARES else ("", 1)
        number, limit = (f"{factor * each:.3g}{unit}" for each in (self.value, self.guard.limit))
        count = self.guard.patience
        since = f"for {count} steps in a row, up to step {self.step}" if count > 1 else f"in step {self.step}"
        return f"{seen.format(value=number)} (limit {limit}) {since}. {why} {change}"


def watch(
    guards: Sequence[Guard], step: int, metrics: Mapping[str, float], state: Mapping[str, Any]
) -> tuple[list[TrippedGuard], dict[str, Any]]:
    """The guards that trip in this step, and the state (JSON) for the next one.

    `state`: as returned for the previous step; empty at the start.
    """
    seen = _remembered(guards, metrics, state)
    alarms: list[TrippedGuard] = []
    counts = list(state.get("counts") or [0] * len(guards))
    for index, guard in enumerate(guards):
        value = _MEASURES[guard.watch](metrics, seen)
        if value is None:
            continue
        counts[index] = counts[index] + 1 if _holds(guard, value) else 0
        if counts[index] == guard.patience:
            alarms.append(TrippedGuard(guard, step, value))
    return alarms, {**seen, "counts": counts}


def restarted(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state with all counters at 0, so that after a pause every guard has its full patience again."""
    return {**state, "counts": [0] * len(state.get("counts", ()))}


def _remembered(
    guards: Sequence[Guard], metrics: Mapping[str, float], state: Mapping[str, Any]
) -> dict[str, Any]:
    """The first entropies and the newest rewards, if a guard needs them."""
    watched = {guard.watch for guard in guards}
    seen: dict[str, Any] = {}
    if "entropy" in watched:
        seen["entropies"] = _with(metrics.get("entropy"), state.get("entropies", []))[:START_STEPS]
    if "reward_plateau" in watched:
        seen["rewards"] = _with(metrics.get("reward"), state.get("rewards", []))[-PLATEAU_STEPS:]
    return seen


def _with(value: float | None, values: Sequence[float]) -> list[float]:
    return [*values] if value is None else [*values, value]


def _holds(guard: Guard, value: float) -> bool:
    if guard.watch in ("entropy", "reward_plateau"):
        return value <= guard.limit
    return value >= guard.limit


def _kl(metrics: Mapping[str, float], seen: Mapping[str, Any]) -> float | None:
    length = metrics.get("completions/mean_length")
    return metrics["kl"] * length if "kl" in metrics and length is not None else None


def _entropy(metrics: Mapping[str, float], seen: Mapping[str, Any]) -> float | None:
    start = seen["entropies"]
    if "entropy" not in metrics or len(start) < START_STEPS or fmean(start) <= 0:
        return None
    return metrics["entropy"] / fmean(start)


def _grader_errors(metrics: Mapping[str, float], seen: Mapping[str, Any]) -> float | None:
    """The error rate of the worst grader; leaves out `tools/error_rate`, which counts calls of tools."""
    rates = [value for name, value in metrics.items() if re.fullmatch("rewards/.+/error_rate", name)]
    return max(rates, default=None)


def _plateau(metrics: Mapping[str, float], seen: Mapping[str, Any]) -> float | None:
    rewards, half = seen["rewards"], PLATEAU_STEPS // 2
    if "reward" not in metrics or len(rewards) < PLATEAU_STEPS:
        return None
    return fmean(rewards[half:]) - fmean(rewards[:half])


def _metric(name: str) -> Callable[[Mapping[str, float], Mapping[str, Any]], float | None]:
    return lambda metrics, seen: metrics.get(name)


_MEASURES: dict[Watch, Callable[[Mapping[str, float], Mapping[str, Any]], float | None]] = {
    "kl": _kl,
    "no_signal": _metric("frac_reward_zero_std"),
    "entropy": _entropy,
    "truncation": _metric("completions/clipped_ratio"),
    "grader_errors": _grader_errors,
    "reward_plateau": _plateau,
    "reward_length": _metric("completions/reward_length_correlation"),
    "sampler_difference": _metric("sampling/sampling_logp_difference/mean"),
}

_TEXTS: dict[Watch, tuple[str, str, str]] = {
    "kl": (
        "The policy is {value} nats per completion away from the reference",
        "At that distance, rewards are often won by tricks and other abilities are lost.",
        "Raise beta or lower learning_rate.",
    ),
    "no_signal": (
        "In {value} of the groups all completions earned the same reward",
        "Such groups teach nothing, and sampling them is wasted.",
        "Choose prompts of medium difficulty, raise group_size or temperature, or set dynamic_sampling.",
    ),
    "entropy": (
        "The entropy of the sampled tokens is down to {value} of its initial value",
        "A policy that repeats itself no longer explores and stops learning.",
        "Raise epsilon_high, entropy_coef or beta, or lower learning_rate.",
    ),
    "truncation": (
        "{value} of the completions were cut at max_completion_tokens",
        "If cut answers score as wrong, that teaches brevity and not the task.",
        "Raise max_completion_tokens, or set mask_truncated_completions or overlong_buffer_tokens.",
    ),
    "grader_errors": (
        "A grader could not score {value} of the completions",
        "Such completions are left out, so the policy trains on a biased selection of its attempts.",
        "Read the rollouts with grader errors and correct the grader; "
        "raise grader_timeout_seconds if it is slow.",
    ),
    "reward_plateau": (
        f"The mean reward changed by {{value}} between the halves of the last {PLATEAU_STEPS} steps",
        "More steps like these cost time without improving the policy.",
        "Stop here with a lower n_steps; if the reward is still low, raise learning_rate or choose "
        "prompts of medium difficulty.",
    ),
    "reward_length": (
        "Reward and length correlate by {value}",
        "A policy that is rewarded for length writes longer, not better.",
        "Check whether grader favours long completions; add a length grader, or lower max_completion_tokens.",
    ),
    "sampler_difference": (
        "The sampler's and the trainer's log-probabilities of a token differ by {value} nats on average",
        "The completions then come from another policy than the one that is trained.",
        "Leave importance_correction at auto, and compare with a run in float32 (runtime.dtype).",
    ),
}
