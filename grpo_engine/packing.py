"""Groups → micro-batches: the only place that shifts, packs and masks.

A group is one stretch of a row: the prompt once, then its completions, positions starting again after the
prompt for each. Rows hold groups up to a token budget; nothing is padded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from grpo_engine.attention import GroupSpan
from grpo_engine.loss import token_weights
from grpo_engine.types import PackedBatch, ScoredGroup


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One completion as it is trained."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of the sampling policy; as long as `token_ids`."""
    advantage: float
    token_weight: float
    """Share of each of its tokens in the optimiser step's loss."""


@dataclass(frozen=True, slots=True)
class TrainingGroup:
    """A prompt and those of its completions that are trained."""

    prompt_ids: tuple[int, ...]
    sequences: tuple[TrainingSequence, ...]

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) + sum(len(sequence.token_ids) for sequence in self.sequences)


def training_groups(
    scored_P: Sequence[ScoredGroup], loss_type: str, max_completion_tokens: int
) -> list[TrainingGroup]:
    """Groups with signal and their scorable completions, each token with its share of the whole step.

    The shares count every completion of the step, so leaving out a group that would move nothing changes
    nothing for the others.
    """
    completions = [completion for scored in scored_P for completion in scored.group.completions]
    lengths = [len(completion.token_ids) for completion in completions]
    weights = iter(token_weights(loss_type, lengths, max_completion_tokens))
    groups = []
    for scored in scored_P:
        members = scored.group.completions
        parts = zip(members, scored.advantages, scored.scores, islice(weights, len(members)), strict=True)
        sequences = tuple(
            TrainingSequence(completion.token_ids, completion.logprobs, advantage, weight)
            for completion, advantage, score, weight in parts
            if score.reward is not None
        )
        if scored.has_signal:
            groups.append(TrainingGroup(scored.group.prompt.token_ids, sequences))
    return groups


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

    input_ids: list[int]
    positions: list[int]
    sources: list[int]
    targets: list[int]
    advantages: list[float]
    weights: list[float]
    logprobs: list[float]

    def add_prompt(self, prompt_ids: Sequence[int]) -> None:
        self.input_ids += prompt_ids
        self.positions += range(len(prompt_ids))

    def add_sequence(self, sequence: TrainingSequence, prompt_end: int, prompt_tokens: int) -> None:
        """The first token is predicted by the prompt's last; each other by the one before it."""
        start, count = len(self.input_ids), len(sequence.token_ids)
        self.input_ids += sequence.token_ids
        self.positions += range(prompt_tokens, prompt_tokens + count)
        self.sources += [prompt_end - 1, *range(start, start + count - 1)]
        self.targets += sequence.token_ids
        self.advantages += [sequence.advantage] * count
        self.weights += [sequence.token_weight] * count
        self.logprobs += sequence.logprobs


def _batch(row: Sequence[TrainingGroup], device: torch.device) -> PackedBatch:
    columns = _Columns([], [], [], [], [], [], [])
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
        targets_N=long(columns.targets),
        advantages_N=real(columns.advantages),
        weights_N=real(columns.weights),
        sampled_logprobs_N=real(columns.logprobs),
    )
