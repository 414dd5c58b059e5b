"""Packing: which hidden state predicts which token, positions, budgets, weights."""

from __future__ import annotations

import torch

from grpo_engine.packing import TrainingGroup, TrainingSequence, pack
from grpo_engine.types import PackedBatch

CPU = torch.device("cpu")


def group(prompt: tuple[int, ...], *completions: tuple[int, ...], advantage: float = 1.0) -> TrainingGroup:
    return TrainingGroup(
        prompt, tuple(TrainingSequence(c, (-1.0,) * len(c), advantage, 0.5) for c in completions)
    )


def packed(*groups: TrainingGroup, budget: int = 1000) -> list[PackedBatch]:
    return list(pack(groups, budget, CPU))


def test_the_prompt_stands_once_and_positions_start_again_after_it() -> None:
    (batch,) = packed(group((10, 11, 12), (20, 21), (30,)))
    assert batch.input_ids.tolist() == [[10, 11, 12, 20, 21, 30]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4, 3]]


def test_first_tokens_are_predicted_by_the_prompts_last_hidden_state() -> None:
    (batch,) = packed(group((10, 11, 12), (20, 21), (30,)))
    assert batch.sources_N.tolist() == [2, 3, 2]
    assert batch.targets_N.tolist() == [20, 21, 30]


def test_every_trained_token_carries_its_completions_advantage_and_weight() -> None:
    (batch,) = packed(group((1,), (2, 3), advantage=-0.5), group((4,), (5,), advantage=2.0))
    by_token = dict(zip(batch.targets_N.tolist(), batch.advantages_N.tolist(), strict=True))
    assert by_token == {2: -0.5, 3: -0.5, 5: 2.0}
    assert batch.weights_N.tolist() == [0.5, 0.5, 0.5]


def test_rows_stay_within_the_token_budget() -> None:
    batches = packed(*(group((1, 2), (3, 4, 5)) for _ in range(7)), budget=11)
    assert [batch.input_ids.shape[1] for batch in batches] == [10, 10, 10, 5]


def test_a_group_above_the_budget_is_split_by_completions_with_its_prompt_repeated() -> None:
    batches = packed(group((1, 2), (3, 4), (5, 6), (7, 8)), budget=6)
    assert sorted(batch.input_ids[0].tolist() for batch in batches) == [[1, 2, 3, 4, 5, 6], [1, 2, 7, 8]]


def test_a_completion_above_the_budget_is_a_row_of_its_own() -> None:
    (batch,) = packed(group((1, 2), (3, 4, 5, 6)), budget=3)
    assert batch.input_ids.shape == (1, 6)


def test_nothing_to_train_makes_no_row() -> None:
    assert packed() == []
