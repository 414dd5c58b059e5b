"""Frozen records of tokens and tensors that the engine's folders exchange, with the shape of each field.

Notation: P prompts of a step, G samples of a prompt's group, N trained tokens of a micro-batch, T tokens
of a packed row. A trained token is one that the model sampled and that is not masked.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from grpo_engine.contract.records import Episode, FinishReason, Score, ToolTurn


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
    conversation: Mapping[str, Any] = field(default_factory=dict)
    """`messages` and `tools` of the row, for prompts that are rendered again; empty for a plain text."""


@dataclass(frozen=True, slots=True)
class Completion:
    text: str
    token_ids: tuple[int, ...]
    """T sampled tokens, end-of-sequence included if the model emitted it."""
    logprobs: tuple[float, ...]
    """T log-probabilities under the sampling policy, at the sampling temperature."""
    finish_reason: FinishReason
    policy_version: int
    sampled: tuple[bool, ...] = ()
    """T; False if a tool or an environment wrote the token. Empty: the model wrote all tokens."""
    row_starts: tuple[int, ...] = ()
    """Positions at which a further conversation of the same rollout starts; each follows the prompt."""
    turns: int = 1
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    """Tool calls with arguments and answers, in order."""
    tool_turns: tuple[ToolTurn, ...] = ()
    """The same calls' answers by turn, with the turns' texts; empty without calls."""
    answer: str | None = None
    """The last turn's text, which graders see; None: `text` is the whole answer."""
    episode: Episode | None = None
    """Its episode, in a job with environments."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def failure(self) -> str | None:
        """Why there is no whole completion to score; None: there is one."""
        return None if self.episode is None else self.episode.failure

    @property
    def is_cut(self) -> bool:
        """Whether a limit ended it; a failed session did not reach one."""
        return self.finish_reason is FinishReason.LENGTH and self.failure is None

    @property
    def num_sampled(self) -> int:
        """Tokens that the model wrote."""
        return sum(self.sampled) if self.sampled else len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Group:
    prompt: Prompt
    completions: tuple[Completion, ...]
    """G samples."""


@dataclass(frozen=True, slots=True)
class GradedGroup:
    """A group with its scores, before advantages are computed."""

    group: Group
    scores: tuple[Score, ...]
    """G scores; a reward of None is unscorable."""
    penalties: tuple[float, ...] = field(default=(), kw_only=True)
    """G KL penalties, to subtract from the rewards; empty: none."""


@dataclass(frozen=True, slots=True)
class ScoredGroup(GradedGroup):
    advantages: tuple[float, ...]
    """G; exactly 0 if the group has no signal or the completion is unscorable."""
    has_signal: bool
    token_advantages: tuple[tuple[float, ...], ...] | None = None
    """G × sampled tokens, if the tokens of a completion differ (step rewards); otherwise None."""


@dataclass(frozen=True, slots=True)
class GroupSpan:
    """Position of a group in a packed row: its prompt, then its completions one after another, in tokens."""

    start: int
    prompt_tokens: int
    completion_tokens: tuple[int, ...]

    @property
    def completions_start(self) -> int:
        return self.start + self.prompt_tokens

    @property
    def end(self) -> int:
        return self.completions_start + sum(self.completion_tokens)


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """A micro-batch: groups in one row without padding, and its N trained tokens."""

    input_ids: Tensor
    """[1, T]."""
    position_ids: Tensor
    """[1, T]; start again after the prompt for each completion."""
    spans: tuple[GroupSpan, ...]
    sources_N: Tensor
    """[N] column of the hidden state that predicts the token (the prompt's last for a first token)."""
    columns_N: Tensor
    """[N] column of the token itself."""
    targets_N: Tensor
    """[N] trained token ids."""
    advantages_N: Tensor
    """[N] advantage of the token's completion, or of the token itself (step rewards)."""
    weights_N: Tensor
    """[N] share of the token in the optimiser step's policy loss; a step's micro-batches sum to the step."""
    kl_weights_N: Tensor
    """[N] share of the token in the optimiser step's KL term."""
    sequences_N: Tensor
    """[N] which completion of the micro-batch the token belongs to, from 0."""
    indices: tuple[int, ...]
    """Completions of the micro-batch by their position in the optimiser step."""
    num_trained: tuple[int, ...]
    """Trained tokens of each of these completions; their sum is N."""
    sampled_logprobs_N: Tensor
    """[N] log-probability under the sampling policy; 0 for supervised rows."""
