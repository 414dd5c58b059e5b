"""Evaluates held-out rows and compares their rewards, row by row, with those before training."""

import statistics
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

from grpo_engine.contract.events import VALIDATION, BaseEvent, Evaluated, Split
from grpo_engine.graders.pool.pool import Grading
from grpo_engine.objective.metrics import (
    PhaseTimer,
    completion_metrics,
    episode_metrics,
    finite,
    reward_metrics,
)
from grpo_engine.objective.significance import verdict_on
from grpo_engine.objective.types import Prompt, ScoredGroup
from grpo_engine.rollout.recording import rollouts
from grpo_engine.rollout.sampler.base import Sampler, Sampling
from grpo_engine.rollout.scoring import sample_and_grade, with_zero_advantages

Rewards = dict[str, float]
"""Row number (as text, for JSON) → reward; unscorable rows are left out."""


@dataclass(frozen=True, slots=True)
class HeldOutSet:
    prompts: Sequence[Prompt]
    grading: Grading
    name: str
    """`validation`, or a retention set's name."""


def evaluate_sets(
    step: int,
    sets: Sequence[HeldOutSet],
    sampler: Sampler,
    sampling: Sampling,
    baseline: Mapping[str, Rewards],
) -> Generator[BaseEvent, None, Mapping[str, Rewards]]:
    """Sample and score one completion per row of every set; yields rollouts and an Evaluated event per set.

    `baseline`: rewards of each set before step 1. Returns it; step 0 sets it to the rewards found.
    """
    offset = 0  # of a retention set's groups in the split that all retention sets share
    for held_out in sets:
        prompts, grading = held_out.prompts, held_out.grading
        graded = sample_and_grade(sampler, grading, prompts, 1, sampling, PhaseTimer())
        scored = [with_zero_advantages(each) for each in graded]
        baseline = yield from evaluation_events(step, held_out.name, scored, baseline, offset=offset)
        offset += len(scored) if held_out.name != VALIDATION else 0
    return baseline


def evaluation_events(
    step: int,
    name: str,
    scored: Sequence[ScoredGroup],
    baseline: Mapping[str, Rewards],
    *,
    offset: int = 0,
    metrics: Mapping[str, float] | None = None,
) -> Generator[BaseEvent, None, Mapping[str, Rewards]]:
    """The rollouts of an evaluated set and its summary with `metrics` added; returns the baseline."""
    split: Split = "validation" if name == VALIDATION else "retention"
    set_name = "" if name == VALIDATION else name
    yield from rollouts(step, scored, split, name=set_name, offset=offset)
    rewards = rewards_by_row(scored)
    before = baseline.get(name) if step else None
    verdict = None if before is None else verdict_on(before, rewards)
    changes = {} if before is None else environment_changes(before, scored)
    everything = {**evaluation_metrics(scored), **changes, **(metrics or {})}
    yield Evaluated(step=step, name=name, metrics=everything, verdict=verdict)
    return baseline if step else {**baseline, name: rewards}


def environment_changes(before: Rewards, scored: Sequence[ScoredGroup]) -> dict[str, float]:
    """The change of each environment's mean reward since `before` and its 95 % interval, as metrics."""
    groups: dict[str, list[ScoredGroup]] = {}
    for each in scored:
        if (episode := each.group.completions[0].episode) is not None:
            groups.setdefault(episode.environment, []).append(each)
    found: dict[str, float | None] = {}
    for name, own in groups.items():
        verdict, place = verdict_on(before, rewards_by_row(own)), f"environments/{name}/difference"
        found |= {place: verdict.difference, f"{place}_low": verdict.low, f"{place}_high": verdict.high}
    return {name: value for name, value in found.items() if value is not None}


def rewards_by_row(scored: Sequence[ScoredGroup]) -> Rewards:
    found = ((group.group.prompt.row, group.scores[0].reward) for group in scored)
    return {str(row): reward for row, reward in found if reward is not None}


def evaluation_metrics(scored: Sequence[ScoredGroup]) -> dict[str, float]:
    """Rewards, lengths, results by environment, share of unscorable rows and number of rows.

    `most_frequent_answer`: share of the rows whose completion is the most frequent one, word for word.
    """
    kept = {
        name: value
        for name, value in reward_metrics(scored).items()
        if name.startswith("rewards/") or name in ("reward", "reward_std", "pass_at_1")
    }
    completions = [group.group.completions[0] for group in scored]
    about = {**completion_metrics(completions), **episode_metrics(completions)}
    errors = statistics.fmean([1.0 if group.scores[0].reward is None else 0.0 for group in scored])
    answers = Counter(completion.text.strip() for completion in completions)
    about["most_frequent_answer"] = max(answers.values()) / len(scored)
    return finite({**kept, **about, "error_rate": errors, "num_rows": float(len(scored))})
