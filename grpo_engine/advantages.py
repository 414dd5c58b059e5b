"""Group-relative advantages: pure functions of one group's rewards.

Sources: `group_std` DeepSeekMath (arXiv 2402.03300) eq. 3; `mean_only` Dr. GRPO (arXiv 2503.20783).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

EPSILON = 1e-4


def has_signal(rewards_G: Sequence[float | None]) -> bool:
    """Whether the scored rewards differ. Decided by max and min, never by a rounded spread."""
    scored = [reward for reward in rewards_G if reward is not None]
    return bool(scored) and max(scored) != min(scored)


def group_std(rewards_G: Tensor, *, ddof: int = 1) -> Tensor:
    """(r − mean) / (std + 1e-4). rewards [G] → advantages [G]."""
    return (rewards_G - rewards_G.mean()) / (rewards_G.std(correction=ddof) + EPSILON)


def mean_only(rewards_G: Tensor, *, ddof: int = 1) -> Tensor:
    """r − mean. rewards [G] → advantages [G]; `ddof` has no part in it."""
    return rewards_G - rewards_G.mean()


ESTIMATORS = {"group_std": group_std, "mean_only": mean_only}


def group_advantages(
    rewards_G: Sequence[float | None], estimator: str = "group_std", *, ddof: int = 1
) -> list[float]:
    """Advantages of one group [G], in float64.

    Unscorable completions (None) are left out of the mean and the spread and get exactly 0; so do all
    completions of a group without signal.
    """
    advantages = [0.0] * len(rewards_G)
    if not has_signal(rewards_G):
        return advantages
    scored = [index for index, reward in enumerate(rewards_G) if reward is not None]
    rewards = torch.tensor([rewards_G[index] for index in scored], dtype=torch.float64)
    for index, value in zip(scored, ESTIMATORS[estimator](rewards, ddof=ddof).tolist(), strict=True):
        advantages[index] = value
    return advantages
