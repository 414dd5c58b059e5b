"""Rewards and advantages of stored groups under two graders.

The engine's function computes both sides' advantages from the rewards alone, so every difference comes from
the grader. A KL penalty in the reward is in neither. Boundary: pure.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from statistics import fmean
from typing import Any, Literal

from grpo_engine.contract.records import OVERLONG, Score
from grpo_engine.graders import Grader
from grpo_engine.graders.rules.multi import Multi
from grpo_engine.objective.advantages import GroupAdvantages, GroupRewards, advantages
from service.jobs.model import names
from service.platform.tables.core import Rollout
from service.rollouts.schemas import (
    ErrorCount,
    RescoredCompletion,
    RescoredGroup,
    RescoreSide,
    RescoreSummary,
)
from service.rollouts.selection import is_truncated

MAX_ERRORS = 10


@dataclass(frozen=True)
class Estimator:
    """The settings that turn rewards into advantages."""

    name: str
    ddof: int
    masks_truncated: bool

    def judged(
        self, groups: Sequence[Rollout], scores: Sequence[Sequence[Score]], grader: Grader | None
    ) -> list[GroupAdvantages]:
        """The advantages of all groups, in order; each step separately, as in the engine."""
        found: list[GroupAdvantages] = []
        weights = grader.weights if isinstance(grader, Multi) else None
        for _, step in groupby(zip(groups, scores, strict=True), key=lambda pair: pair[0].step):
            rewards = [self._rewards(group, own) for group, own in step]
            found += advantages(rewards, self.name, ddof=self.ddof, weights=weights)
        return found

    def _rewards(self, group: Rollout, scores: Sequence[Score]) -> GroupRewards:
        return GroupRewards(
            rewards=tuple(score.reward for score in scores),
            lengths=tuple(self._trained_tokens(each) for each in group.data["completions"]),
            parts=tuple(score.parts for score in scores),
        )

    def _trained_tokens(self, completion: Mapping[str, Any]) -> int:
        masked = self.masks_truncated and is_truncated(completion)
        return 0 if masked else len(completion.get("token_ids", ()))


def stored_score(completion: Mapping[str, Any]) -> Score:
    """The score that the job's own grader gave."""
    return Score(
        reward=completion.get("reward"),
        parts=completion.get("parts") or {},
        errors=completion.get("errors") or {},
    )


def with_own_parts(score: Score, completion: Mapping[str, Any]) -> Score:
    """The new grader's score with the job's own penalty for length, which belongs to no grader."""
    penalty = (completion.get("parts") or {}).get(OVERLONG)
    if penalty is None or score.reward is None:
        return score
    parts = {**score.parts, OVERLONG: penalty}
    return score.model_copy(update={"reward": score.reward + penalty, "parts": parts})


def compared(
    groups: Sequence[Rollout],
    scores: Sequence[Sequence[Score]],
    estimator: Estimator,
    old_grader: Grader | None,
    new_grader: Grader,
) -> list[RescoredGroup]:
    """Each group with its rewards and advantages before and after. `scores`: those of the new grader."""
    stored = [[stored_score(each) for each in group.data["completions"]] for group in groups]
    before = estimator.judged(groups, stored, old_grader)
    after = estimator.judged(groups, scores, new_grader)
    return [_rescored(*each) for each in zip(groups, stored, scores, before, after, strict=True)]


def _rescored(
    group: Rollout,
    old: Sequence[Score],
    new: Sequence[Score],
    before: GroupAdvantages,
    after: GroupAdvantages,
) -> RescoredGroup:
    completions = [
        RescoredCompletion(
            index=index,
            reward_before=was.reward,
            reward_after=now.reward,
            advantage_before=before.values[index],
            advantage_after=after.values[index],
            parts=now.parts,
            errors=now.errors,
        )
        for index, (was, now) in enumerate(zip(old, new, strict=True))
    ]
    scored = [
        (each.reward_before, each.reward_after)
        for each in completions
        if each.reward_before is not None and each.reward_after is not None
    ]
    return RescoredGroup(
        id=names.rollout_id(group.split, group.step, group.position),
        step=group.step,
        split=group.split,
        position=group.position,
        row=group.data["row"],
        mean_before=_mean([score.reward for score in old]),
        mean_after=_mean([score.reward for score in new]),
        has_signal_before=before.has_signal,
        has_signal_after=after.has_signal,
        rank_agreement=rank_agreement(scored),
        num_sign_changes=sum(each.advantage_before * each.advantage_after < 0 for each in completions),
        completions=completions,
    )


def rank_agreement(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Kendall's tau-b of (before, after): 1 same order, -1 opposite order; None if either is constant."""
    agreement = untied_before = untied_after = 0
    for (before, after), (other_before, other_after) in combinations(pairs, 2):
        was, now = _sign(before - other_before), _sign(after - other_after)
        agreement += was * now
        untied_before += was != 0
        untied_after += now != 0
    if not untied_before or not untied_after:
        return None
    return agreement / math.sqrt(untied_before * untied_after)


def summarised(groups: Sequence[RescoredGroup], num_skipped: int) -> RescoreSummary:
    completions = [each for group in groups for each in group.completions]
    agreements = [group.rank_agreement for group in groups if group.rank_agreement is not None]
    return RescoreSummary(
        from_step=min(group.step for group in groups),
        to_step=max(group.step for group in groups),
        num_groups=len(groups),
        num_groups_skipped=num_skipped,
        num_completions=len(completions),
        before=_side(groups, "before"),
        after=_side(groups, "after"),
        rank_agreement=_mean(agreements),
        num_sign_changes=sum(group.num_sign_changes for group in groups),
        errors=list(_errors(completions)),
    )


def _side(groups: Sequence[RescoredGroup], side: Literal["before", "after"]) -> RescoreSide:
    rewards = [getattr(each, f"reward_{side}") for group in groups for each in group.completions]
    return RescoreSide(
        mean_reward=_mean(rewards),
        share_with_signal=fmean(getattr(group, f"has_signal_{side}") for group in groups),
        num_unscored=rewards.count(None),
    )


def _errors(completions: Sequence[RescoredCompletion]) -> Iterator[ErrorCount]:
    """Errors of the new grader, the most frequent first."""
    found = Counter(
        (part, error.code, error.message) for each in completions for part, error in each.errors.items()
    )
    for (part, code, message), count in found.most_common(MAX_ERRORS):
        yield ErrorCount(part=part, code=code, message=message, count=count)


def _mean(values: Sequence[float | None]) -> float | None:
    scored = [value for value in values if value is not None]
    return fmean(scored) if scored else None


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
