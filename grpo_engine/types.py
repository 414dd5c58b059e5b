"""What travels inside the engine: frozen records of tensors and tokens, a shape per field.

Notation: P prompts of a step, G samples of a prompt's group, N trained tokens of a micro-batch, T tokens
of a packed row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from grpo_engine.attention import GroupSpan
from grpo_engine.records import FinishReason, Score


@dataclass(frozen=True, slots=True)
class Prompt:
    """One dataset row, ready to sample from."""

    row: int
    """Index in the dataset, from 0."""
    text: str
    token_ids: tuple[int, ...]
    item: Mapping[str, Any]
    """The row without `messages` and `tools`: what graders see."""
    target_ids: tuple[int, ...] = ()
    """Supervised only: tokens of the assistant's turn, end-of-sequence included."""


@dataclass(frozen=True, slots=True)
class Completion:
    text: str
    token_ids: tuple[int, ...]
    """T sampled tokens, end-of-sequence included where the model gave one."""
    logprobs: tuple[float, ...]
    """T log-probabilities under the sampling policy, at the sampling temperature."""
    finish_reason: FinishReason
    policy_version: int


@dataclass(frozen=True, slots=True)
class Group:
    prompt: Prompt
    completions: tuple[Completion, ...]
    """G samples."""


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    group: Group
    scores: tuple[Score, ...]
    """G scores; a reward of None is unscorable."""
    advantages: tuple[float, ...]
    """G; exactly 0 where the group has no signal or the completion is unscorable."""
    has_signal: bool


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """A micro-batch: groups in one row without padding, and what is trained in it."""

    input_ids: Tensor
    """[1, T]."""
    position_ids: Tensor
    """[1, T]; start again after the prompt for each completion."""
    spans: tuple[GroupSpan, ...]
    sources_N: Tensor
    """[N] column of the hidden state that predicts the token (the prompt's last for a first token)."""
    targets_N: Tensor
    """[N] trained token ids."""
    advantages_N: Tensor
    """[N] advantage of the token's completion."""
    weights_N: Tensor
    """[N] share of the token in the optimiser step's loss; all micro-batches of a step sum to the step."""
    sampled_logprobs_N: Tensor
    """[N] log-probability under the sampling policy; 0 where nothing was sampled (supervised)."""
