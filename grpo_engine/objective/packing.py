"""Groups → micro-batches: the only place that shifts, packs and masks.

A group is one stretch of a row: the prompt once, then its completions, positions starting again after the
prompt for each. Rows hold groups up to a token budget; nothing is padded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from grpo_engine.config.reinforcement import ReinforcementHyperparameters
from grpo_engine.contract.records import FinishReason
from grpo_engine.objective.loss import token_weights
from grpo_engine.objective.types import Completion, GroupSpan, PackedBatch, ScoredGroup


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One completion as it is trained; T tokens."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """T; of the sampling policy."""
    advantages: tuple[float, ...]
    """T."""
    weight: float
    """Share of each trained token in the optimiser step's policy loss."""
    kl_weight: float = 0.0
    """Share of each trained token in the optimiser step's KL term."""
    index: int = 0
    """Position among the optimiser step's completions."""
    trained: tuple[bool, ...] = ()
    """T; False where a token has no part in the loss. Empty: all are trained."""

    @property
    def columns(self) -> list[int]:
        """Positions of the trained tokens."""
        if not self.trained:
            return list(range(len(self.token_ids)))
        return [column for column, trained in enumerate(self.trained) if trained]


@dataclass(frozen=True, slots=True)
class TrainingGroup:
    """A prompt and those of its completions that are trained."""

    prompt_ids: tuple[int, ...]
    sequences: tuple[TrainingSequence, ...]

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) + sum(len(sequence.token_ids) for sequence in self.sequences)


def training_groups(
    scored_P: Sequence[ScoredGroup], settings: ReinforcementHyperparameters
) -> list[TrainingGroup]:
    """Groups with signal and their trainable completions, each token with its share of the whole step.

    The shares count every completion of the step, so leaving out a group that would move nothing changes
    nothing for the others. Cut completions count no tokens where they are masked.
    """
    completions = [completion for scored in scored_P for completion in scored.group.completions]
    lengths = [trained_tokens(completion, settings.mask_truncated_completions) for completion in completions]
    weights = token_weights(settings.loss_type, lengths, settings.max_completion_tokens)
    per_completion = [1.0 / len(completions)] * len(completions)
    kl_weights = per_completion if settings.kl_placement == "loss_sequence" else weights
    groups, first = [], 0
    for scored in scored_P:
        members = range(first, first + len(scored.group.completions))
        first = members.stop
        if scored.has_signal or settings.train_groups_without_signal:
            sequences = tuple(
                _sequence(scored, place, index, weights[index], kl_weights[index])
                for place, index in enumerate(members)
                if lengths[index] and scored.scores[place].reward is not None
            )
            if sequences:
                groups.append(TrainingGroup(scored.group.prompt.token_ids, sequences))
    return groups


def trained_tokens(completion: Completion, mask_truncated: bool) -> int:
    """Tokens of a completion that have a part in the loss."""
    cut = completion.finish_reason is FinishReason.LENGTH
    return 0 if cut and mask_truncated else completion.num_sampled


def _sequence(
    scored: ScoredGroup, place: int, index: int, weight: float, kl_weight: float
) -> TrainingSequence:
    completion = scored.group.completions[place]
    return TrainingSequence(
        token_ids=completion.token_ids,
        logprobs=completion.logprobs,
        advantages=_token_advantages(scored, place),
        weight=weight,
        kl_weight=kl_weight,
        index=index,
        trained=completion.sampled,
    )


def _token_advantages(scored: ScoredGroup, place: int) -> tuple[float, ...]:
    """One for each token; what a tool wrote has none."""
    completion = scored.group.completions[place]
    if scored.token_advantages is None:
        return (scored.advantages[place],) * len(completion.token_ids)
    if not completion.sampled:
        return scored.token_advantages[place]
    sampled = iter(scored.token_advantages[place])
    return tuple(next(sampled) if own else 0.0 for own in completion.sampled)


def pack(groups: Sequence[TrainingGroup], token_budget: int, device: torch.device) -> Iterator[PackedBatch]:
    """Micro-batches of at most `token_budget` tokens, longest groups first.

    A group that is larger than the budget is split by completions (its prompt is then repeated); a single
    completion that is larger makes a micro-batch of its own.
    """
    pieces = [piece for group in groups for piece in _split(group, token_budget)]
    for row in _fill(sorted(pieces, key=lambda piece: -piece.num_tokens), token_budget):
        yield _batch(row, device)


def _split(group: TrainingGroup, token_budget: int) -> Iterator[TrainingGroup]:
    chosen: list[TrainingSequence] = []
    used = len(group.prompt_ids)
    for sequence in group.sequences:
        if chosen and used + len(sequence.token_ids) > token_budget:
            yield TrainingGroup(group.prompt_ids, tuple(chosen))
            chosen, used = [], len(group.prompt_ids)
        chosen.append(sequence)
        used += len(sequence.token_ids)
    if chosen:
        yield TrainingGroup(group.prompt_ids, tuple(chosen))


def _fill(pieces: Sequence[TrainingGroup], token_budget: int) -> list[list[TrainingGroup]]:
    """First-fit: each piece goes into the first row that still has room."""
    rows: list[list[TrainingGroup]] = []
    room: list[int] = []
    for piece in pieces:
        index = next((i for i, free in enumerate(room) if free >= piece.num_tokens), None)
        if index is None:
            rows.append([piece])
            room.append(token_budget - piece.num_tokens)
        else:
            rows[index].append(piece)
            room[index] -= piece.num_tokens
    return rows


@dataclass(slots=True)
class _Columns:
    """The flat lists of a row while it is built."""

    input_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    kl_weights: list[float] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)

    def add_prompt(self, prompt_ids: Sequence[int]) -> None:
        self.input_ids += prompt_ids
        self.positions += range(len(prompt_ids))

    def add_sequence(self, sequence: TrainingSequence, prompt_end: int, prompt_tokens: int) -> None:
        """The first token is predicted by the prompt's last; each other by the one before it."""
        start, count = len(self.input_ids), len(sequence.token_ids)
        self.input_ids += sequence.token_ids
        self.positions += range(prompt_tokens, prompt_tokens + count)
        columns = sequence.columns
        self.sources += [start + column - 1 if column else prompt_end - 1 for column in columns]
        self.columns += [start + column for column in columns]
        self.targets += [sequence.token_ids[column] for column in columns]
        self.advantages += [sequence.advantages[column] for column in columns]
        self.logprobs += [sequence.logprobs[column] for column in columns]
        self.weights += [sequence.weight] * len(columns)
        self.kl_weights += [sequence.kl_weight] * len(columns)
        self.sequences += [len(self.indices)] * len(columns)
        self.indices.append(sequence.index)


def _batch(row: Sequence[TrainingGroup], device: torch.device) -> PackedBatch:
    columns = _Columns()
    spans: list[GroupSpan] = []
    for group in row:
        start = len(columns.input_ids)
        columns.add_prompt(group.prompt_ids)
        prompt_end = len(columns.input_ids)
        for sequence in group.sequences:
            columns.add_sequence(sequence, prompt_end, len(group.prompt_ids))
        lengths = tuple(len(sequence.token_ids) for sequence in group.sequences)
        spans.append(GroupSpan(start, len(group.prompt_ids), lengths))

    def long(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    def real(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device)

    return PackedBatch(
        input_ids=long(columns.input_ids)[None],
        position_ids=long(columns.positions)[None],
        spans=tuple(spans),
        sources_N=long(columns.sources),
        columns_N=long(columns.columns),
        targets_N=long(columns.targets),
        advantages_N=real(columns.advantages),
        weights_N=real(columns.weights),
        kl_weights_N=real(columns.kl_weights),
        sequences_N=long(columns.sequences),
        indices=tuple(columns.indices),
        sampled_logprobs_N=real(columns.logprobs),
    )
