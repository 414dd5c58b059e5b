"""Evaluation of held-out rows: greedy completions, the job's own grader, every completion on record."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from grpo_engine.events import BaseEvent, Evaluated
from grpo_engine.graders import Grader
from grpo_engine.metrics import completion_metrics, finite, reward_metrics
from grpo_engine.sampler.base import Sampler, Sampling
from grpo_engine.scoring import rollouts, score_completion
from grpo_engine.types import Prompt, ScoredGroup


def evaluate_rewards(
    step: int, prompts: Sequence[Prompt], sampler: Sampler, grader: Grader, max_tokens: int
) -> Iterator[BaseEvent]:
    """One greedy completion a row: its rollouts, then the summary."""
    groups = sampler.generate(prompts, 1, Sampling(max_tokens=max_tokens, temperature=0.0, step=step))
    scored = [
        ScoredGroup(
            group,
            (score_completion(group.completions[0], group.prompt, grader),),
            advantages=(0.0,),
            has_signal=False,
        )
        for group in groups
    ]
    yield from rollouts(step, scored, "validation")
    kept = {
        name: value
        for name, value in reward_metrics(scored).items()
        if name.startswith("rewards/") or name in ("reward", "reward_std", "pass_at_1")
    }
    lengths = completion_metrics([group.group.completions[0] for group in scored])
    errors = statistics.fmean([1.0 if group.scores[0].reward is None else 0.0 for group in scored])
    metrics = {**kept, **lengths, "error_rate": errors, "num_rows": float(len(scored))}
    yield Evaluated(step=step, metrics=finite(metrics))
