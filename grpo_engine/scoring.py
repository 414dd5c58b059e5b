"""Graders over groups: rewards, then advantages. An error is counted and named, never a silent 0."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from grpo_engine.advantages import group_advantages, has_signal
from grpo_engine.config import ReinforcementHyperparameters
from grpo_engine.errors import GraderError
from grpo_engine.events import RolloutsRecorded, Split
from grpo_engine.graders import Grader, grade, make_sample
from grpo_engine.records import CompletionRecord, GroupRecord, Score
from grpo_engine.types import Completion, Group, Prompt, ScoredGroup


def score_groups(
    groups_P: Sequence[Group], grader: Grader, hyperparameters: ReinforcementHyperparameters
) -> list[ScoredGroup]:
    """Score every completion and compare it with its group. Raises GraderError where too many fail."""
    scored = [_score_group(group, grader, hyperparameters) for group in groups_P]
    _refuse_broken_grader(scored, hyperparameters.max_grader_error_rate)
    return scored


def _score_group(group: Group, grader: Grader, hyperparameters: ReinforcementHyperparameters) -> ScoredGroup:
    scores = tuple(score_completion(completion, group.prompt, grader) for completion in group.completions)
    rewards_G = [score.reward for score in scores]
    advantages_G = group_advantages(rewards_G, hyperparameters.advantage, ddof=hyperparameters.advantage_ddof)
    return ScoredGroup(group, scores, tuple(advantages_G), has_signal(rewards_G))


def score_completion(completion: Completion, prompt: Prompt, grader: Grader) -> Score:
    """What the job's grader says of one completion."""
    sample = make_sample(
        completion.text, num_tokens=len(completion.token_ids), finish_reason=completion.finish_reason
    )
    return grade(grader, sample, prompt.item)


def _refuse_broken_grader(scored: Sequence[ScoredGroup], limit: float) -> None:
    scores = [score for group in scored for score in group.scores]
    broken = [score for score in scores if score.reward is None]
    if len(broken) > limit * len(scores):
        raise GraderError(
            f"{len(broken)} of {len(scores)} completions could not be scored",
            evidence=tuple(_evidence(broken[:3])),
        )


def _evidence(scores: Sequence[Score]) -> Iterator[str]:
    for score in scores:
        for part, error in score.errors.items():
            yield f"{part}: {error.code}: {error.message}"


EVENT_TOKENS = 200_000
"""Completion tokens of one rollouts event: a few MiB as JSON, well below the longest line."""


def rollouts(step: int, scored: Sequence[ScoredGroup], split: Split = "train") -> Iterator[RolloutsRecorded]:
    """A step's groups as events of bounded size."""
    groups: list[GroupRecord] = []
    first = tokens = 0
    for position, group in enumerate(scored):
        size = sum(len(completion.token_ids) for completion in group.group.completions)
        if groups and tokens + size > EVENT_TOKENS:
            yield RolloutsRecorded(step=step, split=split, first=first, groups=tuple(groups))
            groups, first, tokens = [], position, 0
        groups.append(record(group))
        tokens += size
    yield RolloutsRecorded(step=step, split=split, first=first, groups=tuple(groups))


def record(scored: ScoredGroup) -> GroupRecord:
    """The group as it is stored and shown."""
    group = scored.group
    return GroupRecord(
        row=group.prompt.row,
        prompt=group.prompt.text,
        has_signal=scored.has_signal,
        completions=tuple(
            CompletionRecord(
                text=completion.text,
                token_ids=completion.token_ids,
                reward=score.reward,
                parts=score.parts,
                errors=score.errors,
                advantage=advantage,
                finish_reason=completion.finish_reason,
                policy_version=completion.policy_version,
            )
            for completion, score, advantage in zip(
                group.completions, scored.scores, scored.advantages, strict=True
            )
        ),
    )
