"""Evaluation of held-out rows, every completion on record, compared row by row with before training.

Boundary: which policy samples, and what follows from a verdict, is the loop's.
"""

from __future__ import annotations

import statistics
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from grpo_engine.contract.events import VALIDATION, BaseEvent, Evaluated, Verdict
from grpo_engine.contract.records import Score
from grpo_engine.graders.pool.pool import Grading
from grpo_engine.objective.metrics import completion_metrics, finite, reward_metrics
from grpo_engine.objective.significance import compare, compare_retained
from grpo_engine.objective.types import GradedGroup, Group, Prompt, ScoredGroup
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.rollout.sampler.base import Sampler, Sampling
from grpo_engine.rollout.scoring import rollouts, sample_of, without_signal

Rewards = dict[str, float]
"""Row (as text, for JSON) → reward; unscorable rows are left out."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Rows to evaluate on, and who scores them."""

    prompts: Sequence[Prompt]
    grading: Grading
    name: str = VALIDATION
    """`validation`, or a retention set's name."""


def evaluate_sets(
    step: int,
    sets: Sequence[HeldOut],
    sampler: Sampler,
    sampling: Sampling,
    baseline: Mapping[str, Rewards],
) -> Generator[BaseEvent, None, dict[str, Rewards]]:
    """One completion a row of every set: its rollouts, then the set's summary with its verdict.

    `baseline`: rewards of each set before step 1. Returns it, with those of this evaluation at step 0.
    """
    first, known = 0, dict(baseline)
    for held_out in sets:
        scored = sample_and_score(held_out, sampler, sampling)
        is_retention = held_out.name != VALIDATION
        offset = first if is_retention else 0  # of the split's positions in this step
        yield from recorded(step, held_out.name, scored, offset)
        first += len(scored) if is_retention else 0
        rewards = rewards_by_row(scored)
        if step == 0:
            known[held_out.name] = rewards
        verdict = verdict_on(held_out.name, known.get(held_out.name), rewards) if step else None
        yield Evaluated(step=step, name=held_out.name, metrics=summary(scored), verdict=verdict)
    return known


def sample_and_score(held_out: HeldOut, sampler: Sampler, sampling: Sampling) -> list[ScoredGroup]:
    """A row's completion is graded while others are still sampled; each rank does its part of the rows."""
    ranks = Ranks.current()
    first, own = ranks.part(held_out.prompts)
    sampling = sampling.starting_at(sampling.first_prompt + first)
    waiting: dict[int, Future[Score]] = {}

    def submit(position: int, group: Group) -> None:
        waiting[position] = held_out.grading.submit(sample_of(group.completions[0]), group.prompt.item)

    groups = sampler.generate(own, 1, sampling, submit)
    return ranks.joined(
        [
            without_signal(GradedGroup(group, (waiting[position].result(),)))
            for position, group in enumerate(groups)
        ]
    )


def recorded(step: int, name: str, scored: Sequence[ScoredGroup], offset: int) -> Iterator[BaseEvent]:
    """The set's rollouts; all retention sets share one split, one after another from `offset` on."""
    if name == VALIDATION:
        yield from rollouts(step, scored, "validation")
        return
    for event in rollouts(step, scored, "retention"):
        yield event.model_copy(update={"name": name, "first": event.first + offset})


def rewards_by_row(scored: Sequence[ScoredGroup]) -> Rewards:
    """What verdicts compare."""
    found = ((group.group.prompt.row, group.scores[0].reward) for group in scored)
    return {str(row): reward for row, reward in found if reward is not None}


def verdict_on(name: str, before: Rewards | None, after: Rewards) -> Verdict | None:
    """None where nothing is known of before training."""
    if before is None:
        return None
    return compare(before, after) if name == VALIDATION else compare_retained(name, before, after)


def summary(scored: Sequence[ScoredGroup]) -> dict[str, float]:
    """Rewards, lengths, errors and the number of rows."""
    kept = {
        name: value
        for name, value in reward_metrics(scored).items()
        if name.startswith("rewards/") or name in ("reward", "reward_std", "pass_at_1")
    }
    lengths = completion_metrics([group.group.completions[0] for group in scored])
    errors = statistics.fmean([1.0 if group.scores[0].reward is None else 0.0 for group in scored])
    return finite({**kept, **lengths, "error_rate": errors, "num_rows": float(len(scored))})
