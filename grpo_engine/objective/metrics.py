"""Metrics of a step under TRL's names: flat, finite and token-weighted."""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from grpo_engine.config.reinforcement import ReinforcementHyperparameters
from grpo_engine.contract.records import Episode
from grpo_engine.objective.loss import clip_counts, kl_estimate, ratios
from grpo_engine.objective.types import Completion, PackedBatch, ScoredGroup

PASS_REWARD = 1.0
"""A completion with at least this reward counts as passed in `pass_at_1` and `pass_at_group`."""

MEAN_DIFFERENCE = "sampling/sampling_logp_difference/mean"
LARGEST_DIFFERENCE = "sampling/sampling_logp_difference/max"
LEAST_RATIO = "sampling/importance_sampling_ratio/min"
LARGEST_RATIO = "sampling/importance_sampling_ratio/max"


class PhaseTimer:
    """Seconds by phase of one step."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start

    def metrics(self) -> dict[str, float]:
        timing = {f"timing/{phase}_seconds": seconds for phase, seconds in self.seconds.items()}
        return {"step_time": time.perf_counter() - self.started, **timing}


def numbers(values: Sequence[Tensor]) -> list[float]:
    """The numbers in scalar tensors, as float32. The host waits for the device once, not once per tensor."""
    return cast(list[float], torch.stack([each.float() for each in values]).tolist()) if values else []


def batch_numbers(
    batch: PackedBatch,
    loss: Tensor,
    logprobs_N: Tensor,
    old_N: Tensor,
    reference_N: Tensor | None,
    entropy_N: Tensor,
    settings: ReinforcementHyperparameters,
) -> dict[str, Tensor]:
    """The loss of a micro-batch, and sums and extremes over its trained tokens, on their device.

    All tensors but the loss are [N], without gradient.
    """
    ratio_N = ratios(logprobs_N, old_N, batch.sequences_N, settings.loss_type)
    low, high = clip_counts(ratio_N, batch.advantages_N, settings)
    difference = old_N - batch.sampled_logprobs_N
    mismatch = difference.exp()
    found = {
        "tokens": logprobs_N.new_full((), len(logprobs_N)),
        "loss": loss,
        LARGEST_DIFFERENCE: difference.abs().max(),
        LEAST_RATIO: mismatch.min(),
        LARGEST_RATIO: mismatch.max(),
        "clip_ratio/low_mean": low,
        "clip_ratio/high_mean": high,
        "clip_ratio/region_mean": low + high,
        "entropy": entropy_N.sum(),
        MEAN_DIFFERENCE: difference.abs().sum(),
        "sampling/importance_sampling_ratio/mean": mismatch.sum(),
    }
    if reference_N is not None:
        found["kl"] = kl_estimate(logprobs_N, reference_N, settings.kl_estimator).sum()
    return found


def read_numbers(batches: Sequence[Mapping[str, Tensor]]) -> list[dict[str, float]]:
    """The results of `batch_numbers` on the host, which waits for the device once."""
    values = iter(numbers([value for each in batches for value in each.values()]))
    return [{name: next(values) for name in each} for each in batches]


EXTREMES: Mapping[str, Callable[[Iterable[float]], float]] = {
    LARGEST_DIFFERENCE: max,
    LEAST_RATIO: min,
    LARGEST_RATIO: max,
}


def training_metrics(batches: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Metrics of an optimiser step from the numbers of all its micro-batches: means by token."""
    extremes = {name: extreme(each[name] for each in batches) for name, extreme in EXTREMES.items()}
    sums = {name: sum(each[name] for each in batches) for name in batches[0] if name not in extremes}
    tokens, loss = sums.pop("tokens"), sums.pop("loss")
    return {"loss": loss, **{name: total / tokens for name, total in sums.items()}, **extremes}


def reward_metrics(scored: Sequence[ScoredGroup]) -> dict[str, float]:
    """Rewards, their parts, and the share of groups without signal (always by group)."""
    scores = [score for group in scored for score in group.scores]
    rewards = [score.reward for score in scores if score.reward is not None]
    metrics = {
        "reward": _mean(rewards),
        "reward_std": _spread(rewards),
        "frac_reward_zero_std": _mean([0.0 if group.has_signal else 1.0 for group in scored]),
        "pass_at_1": _mean([1.0 if reward >= PASS_REWARD else 0.0 for reward in rewards]),
        "pass_at_group": _mean(
            [1.0 if any((s.reward or 0) >= PASS_REWARD for s in group.scores) else 0.0 for group in scored]
        ),
    }
    for part in sorted({name for score in scores for name in score.parts}):
        values = [value for score in scores if (value := score.parts.get(part)) is not None]
        metrics[f"rewards/{part}/mean"] = _mean(values)
        metrics[f"rewards/{part}/std"] = _spread(values)
        metrics[f"rewards/{part}/error_rate"] = _mean([1.0 if part in s.errors else 0.0 for s in scores])
    return metrics


def completion_metrics(completions: Sequence[Completion]) -> dict[str, float]:
    """Lengths in tokens and the truncated share."""
    lengths = [float(completion.num_tokens) for completion in completions]
    cut = [1.0 if completion.is_cut else 0.0 for completion in completions]
    return {
        "completions/mean_length": _mean(lengths),
        "completions/min_length": min(lengths),
        "completions/max_length": max(lengths),
        "completions/clipped_ratio": _mean(cut),
    }


def length_correlation(scored: Sequence[ScoredGroup]) -> dict[str, float]:
    """Pearson's correlation over the scored completions; empty if all rewards or all lengths are equal."""
    pairs = [
        (score.reward, float(len(completion.token_ids)))
        for each in scored
        for completion, score in zip(each.group.completions, each.scores, strict=True)
        if score.reward is not None
    ]
    if len({reward for reward, _ in pairs}) < 2 or len({length for _, length in pairs}) < 2:
        return {}
    largest = max(abs(reward) for reward, _ in pairs)  # squares of rewards below 1e-162 would be 0
    scaled = [(reward / largest, length) for reward, length in pairs]
    return {"completions/reward_length_correlation": statistics.correlation(*zip(*scaled, strict=True))}


def tool_metrics(completions: Sequence[Completion]) -> dict[str, float]:
    """Calls and turns per completion, and the share of calls that failed (absent without calls)."""
    calls = [call for completion in completions for call in completion.tool_calls]
    metrics = {
        "tools/calls_mean": len(calls) / max(1, len(completions)),
        "tools/turns_mean": statistics.fmean(each.turns for each in completions),
    }
    if calls:
        metrics["tools/error_rate"] = sum(bool(call["error"]) for call in calls) / len(calls)
    return metrics


def episode_metrics(completions: Sequence[Completion]) -> dict[str, float]:
    """Mean reward and turns, and the share of failed sessions, of each environment; empty without any."""
    by_name: dict[str, list[Episode]] = {}
    for each in completions:
        if each.episode is not None:
            by_name.setdefault(each.episode.environment, []).append(each.episode)
    metrics = {}
    for name, episodes in by_name.items():
        metrics[f"environments/{name}/failure_rate"] = statistics.fmean(bool(e.failure) for e in episodes)
        metrics[f"environments/{name}/turns_mean"] = statistics.fmean(len(e.turns) for e in episodes)
        if rewards := [e.reward for e in episodes if e.reward is not None]:
            metrics[f"environments/{name}/reward"] = statistics.fmean(rewards)
    return metrics


def step_metrics(scored: Sequence[ScoredGroup], timer: PhaseTimer, device: torch.device) -> dict[str, float]:
    """Metrics of every step: rewards, completions, speed, memory, seconds by phase."""
    completions = [completion for each in scored for completion in each.group.completions]
    sampled, seconds = sum(one.num_sampled for one in completions), timer.seconds.get("sample")
    speed = {"perf/sampled_tokens_per_second": sampled / max(1e-9, seconds)} if seconds is not None else {}
    return {
        **reward_metrics(scored),
        **completion_metrics(completions),
        **episode_metrics(completions),
        **length_correlation(scored),
        **speed,
        "memory/peak_bytes": peak_memory_bytes(device),
        **timer.metrics(),
    }


def mean_metrics(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Name → mean over the rows."""
    return {name: _mean([row[name] for row in rows]) for name in rows[0]}


def peak_memory_bytes(device: torch.device) -> float:
    """Peak of the GPU's allocated memory, or of this process's resident memory on CPU."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    # not getrusage: its maximum includes the memory of the process that started this one
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def finite(metrics: dict[str, float]) -> dict[str, float]:
    """The finite metrics only, because JSON has no NaN."""
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def _spread(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0
