"""Packs groups into micro-batches: the only module that shifts, packs and masks tokens.

A group occupies a contiguous part of a row: the prompt once, then its completions; positions restart after
the prompt for each. Rows hold groups up to a token budget, without padding.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise
from typing import Self

import torch

from grpo_engine.config.reinforcement import ReinforcementHyperparameters
from grpo_engine.contract.records import FinishReason
from grpo_engine.objective.loss import token_weights
from grpo_engine.objective.types import Completion, GroupSpan, PackedBatch, ScoredGroup


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One completion for training; T tokens."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """T; log-probabilities under the sampling policy."""
    advantages: tuple[float, ...]
    """Advantage of each of the T tokens."""
    weight: float
    """Share of each trained token in the optimiser step's policy loss."""
    kl_weight: float = 0.0
    """Share of each trained token in the optimiser step's KL term."""
    index: int = 0
    """Its number in the optimiser step: the completion's position, or a later number for a further
    conversation."""
    trained: tuple[bool, ...] = ()
    """T; False if the token has no part in the loss. Empty: all are trained."""

    @classmethod
    def unweighted(cls, completion: Completion, index: int) -> Self:
        """A completion whose sampled tokens are evaluated, but have no weight in the policy loss."""
        zeros = (0.0,) * len(completion.token_ids)
        return cls(
            completion.token_ids, completion.logprobs, zeros, 0.0, index=index, trained=completion.sampled
        )

    def split(self, row_starts: Sequence[int], indices: Iterator[int]) -> list[Self]:
        """The sequence as one for each conversation; all but the first get the next of `indices`."""
        if not row_starts:
            return [self]
        parts = [slice(*ends) for ends in pairwise((0, *row_starts, len(self.token_ids)))]
        return [
            replace(
                self,
                token_ids=self.token_ids[part],
                logprobs=self.logprobs[part],
                advantages=self.advantages[part],
                trained=self.trained[part],
                index=next(indices) if number else self.index,
            )
            for number, part in enumerate(parts)
        ]

    @property
    def columns(self) -> list[int]:
        """Positions of the trained tokens."""
        if not self.trained:
            return list(range(len(self.token_ids)))
        return [column for column, trained in enumerate(self.trained) if trained]


@dataclass(frozen=True, slots=True)
class TrainingGroup:
    """A prompt and its trained completions."""

    prompt_ids: tuple[int, ...]
    sequences: tuple[TrainingSequence, ...]

    @classmethod
    def of(cls, prompt_ids: tuple[int, ...], *completions: tuple[int, ...], weight: float = 1.0) -> Self:
        """A group whose log-probabilities and advantages are 0."""
        sequences = [
            TrainingSequence(ids, (0.0,) * len(ids), (0.0,) * len(ids), weight, index=index)
            for index, ids in enumerate(completions)
        ]
        return cls(prompt_ids, tuple(sequences))

    @property
    def num_trained(self) -> int:
        """Tokens that have a part in the loss."""
        return sum(len(sequence.columns) for sequence in self.sequences)

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) + sum(len(sequence.token_ids) for sequence in self.sequences)


def training_groups(
    scored_P: Sequence[ScoredGroup], settings: ReinforcementHyperparameters
) -> list[TrainingGroup]:
    """Groups with signal and their trainable completions, each token with its weight in the whole step.

    The weights count every completion of the step, so leaving out a group without signal does not change the
    others. Masked truncated completions count no tokens.
    """
    completions = [completion for scored in scored_P for completion in scored.group.completions]
    lengths = [trained_tokens(completion, settings.mask_truncated_completions) for completion in completions]
    weights = token_weights(settings.loss_type, lengths, settings.max_completion_tokens)
    per_completion = [1.0 / len(completions)] * len(completions)
    kl_weights = per_completion if settings.kl_placement == "loss_sequence" else weights
    groups, first, further = [], 0, count(len(completions))
    for scored in scored_P:
        members = range(first, first + len(scored.group.completions))
        first = members.stop
        if scored.has_signal or settings.train_groups_without_signal:
            sequences = tuple(
                sequence
                for place, index in enumerate(members)
                if lengths[index] and scored.scores[place].reward is not None
                for sequence in replace(
                    TrainingSequence.unweighted(completions[index], index),
                    advantages=_token_advantages(scored, place),
                    weight=weights[index],
                    kl_weight=kl_weights[index],
                ).split(completions[index].row_starts, further)
            )
            if sequences:
                groups.append(TrainingGroup(scored.group.prompt.token_ids, sequences))
    return groups


def trained_tokens(completion: Completion, mask_truncated: bool) -> int:
    """Tokens of a completion that have a part in the loss."""
    cut = completion.finish_reason is FinishReason.LENGTH
    return 0 if cut and mask_truncated else completion.num_sampled


def _token_advantages(scored: ScoredGroup, place: int) -> tuple[float, ...]:
    """One advantage per token; 0 for tokens that a tool wrote."""
    completion = scored.group.completions[place]
    if scored.token_advantages is None:
        return (scored.advantages[place],) * len(completion.token_ids)
    if not completion.sampled:
        return scored.token_advantages[place]
    sampled = iter(scored.token_advantages[place])
    return tuple(next(sampled) if own else 0.0 for own in completion.sampled)


def pack(groups: Sequence[TrainingGroup], token_budget: int, device: torch.device) -> Iterator[PackedBatch]:
    """Micro-batches of at most `token_budget` tokens, longest groups first.

    A group that exceeds the budget is split by completions and its prompt repeated; a single completion that
    exceeds it becomes a micro-batch of its own.
    """
    parts = [part for group in groups for part in _split(group, token_budget)]
    for row in _fill(sorted(parts, key=lambda part: -part.num_tokens), token_budget):
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
    """First-fit: each part goes into the first row with enough room."""
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


def _batch(row: Sequence[TrainingGroup], device: torch.device) -> PackedBatch:
    input_ids: list[int] = []
    positions: list[int] = []
    spans: list[GroupSpan] = []
    indices: list[int] = []
    num_trained: list[int] = []
    places: list[tuple[int, int, int, int]] = []
    """(source, column, target, sequence) of each trained token."""
    values: list[tuple[float, float, float, float]] = []
    """(advantage, weight, KL weight, sampled log-probability) of each trained token."""
    for group in row:
        num_prompt = len(group.prompt_ids)
        lengths = tuple(len(sequence.token_ids) for sequence in group.sequences)
        spans.append(GroupSpan(len(input_ids), num_prompt, lengths))
        input_ids += group.prompt_ids
        positions += range(num_prompt)
        prompt_end = len(input_ids)
        for each in group.sequences:
            start = len(input_ids)
            input_ids += each.token_ids
            positions += range(num_prompt, num_prompt + len(each.token_ids))
            for i in each.columns:
                # The prompt's last token predicts the first one; each other is predicted by the one before.
                source = start + i - 1 if i else prompt_end - 1
                places.append((source, start + i, each.token_ids[i], len(indices)))
                values.append((each.advantages[i], each.weight, each.kl_weight, each.logprobs[i]))
            indices.append(each.index)
            num_trained.append(len(each.columns))
    places_N = torch.tensor(places, dtype=torch.long, device=device).reshape(-1, 4).T.contiguous()
    values_N = torch.tensor(values, dtype=torch.float32, device=device).reshape(-1, 4).T.contiguous()
    return PackedBatch(
        input_ids=torch.tensor([input_ids], dtype=torch.long, device=device),
        position_ids=torch.tensor([positions], dtype=torch.long, device=device),
        spans=tuple(spans),
        sources_N=places_N[0],
        columns_N=places_N[1],
        targets_N=places_N[2],
        advantages_N=values_N[0],
        weights_N=values_N[1],
        kl_weights_N=values_N[2],
        sequences_N=places_N[3],
        indices=tuple(indices),
        num_trained=tuple(num_trained),
        sampled_logprobs_N=values_N[3],
    )
