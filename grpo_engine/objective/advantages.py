"""Group-relative advantages: pure functions of a step's rewards, in float64.

Sources: `group_std` DeepSeekMath (arXiv 2402.03300) eq. 3, `process` its §4.1.3; `mean_only` Dr. GRPO
(2503.20783); `leave_one_out` RLOO (2402.14740); `reinforce_plus_plus` (2501.03262); `gdpo` (2601.05242);
`batch_std` as TRL's `scale_rewards="batch"`.

With every estimator, an unscorable completion (None) is left out of every mean and standard deviation and
gets exactly 0. So does every completion of a group without signal, which is decided by max and min, never by
a rounded standard deviation.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

EPSILON = 1e-4
WHITENING_EPSILON = 1e-8


@dataclass(frozen=True, slots=True)
class GroupRewards:
    """Input of the estimators for one group of G completions."""

    rewards: tuple[float | None, ...]
    lengths: tuple[int, ...] = ()
    """Trained tokens of each completion."""
    parts: tuple[Mapping[str, float | None], ...] = ()
    """Each completion's rewards by part; `gdpo` only."""
    steps: tuple[tuple[tuple[int, float], ...], ...] = ()
    """Each completion's reasoning steps as (tokens up to the step's end, reward); `process` only."""
    penalties: tuple[float, ...] = ()
    """KL penalties, subtracted from the rewards after the signal is decided."""

    @property
    def scored(self) -> list[int]:
        return [index for index, reward in enumerate(self.rewards) if reward is not None]

    @property
    def values(self) -> list[float]:
        """Rewards of the scored completions, penalties subtracted."""
        penalties = self.penalties or (0.0,) * len(self.rewards)
        return [reward - penalties[i] for i, reward in enumerate(self.rewards) if reward is not None]


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    has_signal: bool
    values: tuple[float, ...]
    """G; with step rewards the mean over the completion's tokens."""
    by_token: tuple[tuple[float, ...], ...] | None = None
    """G × trained tokens, if tokens of one completion differ; otherwise None."""


def differ(values: Sequence[float]) -> bool:
    """Whether the values are not all equal: max ≠ min."""
    return bool(values) and max(values) != min(values)


def has_signal(group: GroupRewards, estimator: str = "group_std") -> bool:
    """Whether the group's scored rewards (or any of their parts, or their steps) differ."""
    if estimator == "gdpo":
        return any(differ(list(part.values())) for part in _by_part(group).values())
    if estimator == "process":
        return differ([reward for index in group.scored for _, reward in group.steps[index]])
    return differ([reward for reward in group.rewards if reward is not None])


def advantages(
    groups_P: Sequence[GroupRewards],
    estimator: str = "group_std",
    *,
    ddof: int = 1,
    weights: Mapping[str, float] | None = None,
) -> list[GroupAdvantages]:
    """P groups of rewards → P groups of advantages. `weights`: of the parts, for `gdpo` only; 1 if
    missing."""
    signal = [has_signal(group, estimator) for group in groups_P]
    if estimator == "process":
        return [_process(group, ddof, each) for group, each in zip(groups_P, signal, strict=True)]
    if estimator == "gdpo":
        centred = [_standardised_parts(group, ddof, weights or {}) for group in groups_P]
    else:
        centred = [WITHIN_GROUP[estimator](group.values, ddof) for group in groups_P]
    across_groups = ACROSS_GROUPS.get(estimator)
    scaled: Centred = centred if across_groups is None else across_groups(groups_P, centred, ddof)
    return [_placed(*each) for each in zip(groups_P, scaled, signal, strict=True)]


def _placed(group: GroupRewards, values: Sequence[float], signal: bool) -> GroupAdvantages:
    """The scored completions' values at their positions, 0 elsewhere."""
    placed = [0.0] * len(group.rewards)
    if signal:
        for index, value in zip(group.scored, values, strict=True):
            placed[index] = value
    return GroupAdvantages(signal, tuple(placed))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _std(values: Sequence[float], ddof: int) -> float:
    """Standard deviation; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    mean = _mean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - ddof))


def _less_mean(values: Sequence[float], ddof: int) -> list[float]:
    mean = _mean(values)
    return [value - mean for value in values]


def _z_scores(values: Sequence[float], ddof: int) -> list[float]:
    std = _std(values, ddof)
    return [value / (std + EPSILON) for value in _less_mean(values, ddof)]


def _less_others(values: Sequence[float], ddof: int) -> list[float]:
    """r − mean of the others = G/(G−1)·(r − mean)."""
    factor = len(values) / max(1, len(values) - 1)
    return [factor * value for value in _less_mean(values, ddof)]


WITHIN_GROUP: Mapping[str, Callable[[Sequence[float], int], list[float]]] = {
    "group_std": _z_scores,
    "mean_only": _less_mean,
    "batch_std": _less_mean,
    "leave_one_out": _less_others,
    "reinforce_plus_plus": _less_mean,
}

Centred = Sequence[Sequence[float]]
"""P groups of the scored completions' values."""


def _over_batch_std(groups_P: Sequence[GroupRewards], centred: Centred, ddof: int) -> Centred:
    """Divide by the standard deviation of the batch's rewards."""
    std = _std([value for group in groups_P for value in group.values], ddof)
    return [[value / (std + EPSILON) for value in values] for values in centred]


def _standardised_over_batch(groups_P: Sequence[GroupRewards], centred: Centred, ddof: int) -> Centred:
    everything = [value for values in centred for value in values]
    mean, std = _mean(everything), _std(everything, ddof)
    return [[(value - mean) / (std + EPSILON) for value in values] for values in centred]


def _whitened_over_tokens(groups_P: Sequence[GroupRewards], centred: Centred, ddof: int) -> Centred:
    """Whiten with mean and variance over the batch's tokens, so that a longer completion counts more."""
    lengths = [[group.lengths[index] for index in group.scored] for group in groups_P]
    pairs = [
        pair
        for values, counts in zip(centred, lengths, strict=True)
        for pair in zip(values, counts, strict=True)
    ]
    tokens = sum(count for _, count in pairs)
    mean = math.fsum(value * count for value, count in pairs) / max(1, tokens)
    squares = math.fsum((value - mean) ** 2 * count for value, count in pairs)
    deviation = math.sqrt(squares / max(1, tokens - ddof) + WHITENING_EPSILON)
    return [[(value - mean) / deviation for value in values] for values in centred]


ACROSS_GROUPS: Mapping[str, Callable[[Sequence[GroupRewards], Centred, int], Centred]] = {
    "batch_std": _over_batch_std,
    "reinforce_plus_plus": _whitened_over_tokens,
    "gdpo": _standardised_over_batch,
}


def _by_part(group: GroupRewards) -> dict[str, dict[int, float]]:
    """Part → scored completion → reward; a part that could not be scored is left out for that completion."""
    parts: dict[str, dict[int, float]] = {}
    for index in group.scored:
        for name, reward in group.parts[index].items():
            if reward is not None:
                parts.setdefault(name, {})[index] = reward
    return parts


def _standardised_parts(group: GroupRewards, ddof: int, weights: Mapping[str, float]) -> list[float]:
    """Each part's z-scores in the group, weighted and summed; penalties count as a part of their own."""
    sums = dict.fromkeys(group.scored, 0.0)
    for name, part in _by_part(group).items():
        if differ(list(part.values())):
            for index, score in zip(part, _z_scores(list(part.values()), ddof), strict=True):
                sums[index] += weights.get(name, 1.0) * score
    if group.penalties:
        mean = _mean([group.penalties[index] for index in sums])
        sums = {index: value - (group.penalties[index] - mean) for index, value in sums.items()}
    return list(sums.values())


def _process(group: GroupRewards, ddof: int, signal: bool) -> GroupAdvantages:
    """Mean and spread run over every step of every completion; a token takes the sum of the standardised
    rewards of the steps that end at or after it."""
    if not signal:
        zeros = tuple((0.0,) * length for length in group.lengths)
        return GroupAdvantages(False, (0.0,) * len(group.rewards), zeros)
    scored = set(group.scored)
    everything = [reward for index in group.scored for _, reward in group.steps[index]]
    mean, std = _mean(everything), _std(everything, ddof)
    penalties = group.penalties or (0.0,) * len(group.rewards)
    by_token = []
    for index, length in enumerate(group.lengths):
        steps = group.steps[index] if index in scored else ()
        gains = [(end, (reward - mean) / (std + EPSILON)) for end, reward in steps]
        gains.append((length, -penalties[index] if index in scored else 0.0))
        by_token.append(tuple(sum(gain for end, gain in gains if end > t) for t in range(length)))
    return GroupAdvantages(True, tuple(_mean(values) for values in by_token), tuple(by_token))
