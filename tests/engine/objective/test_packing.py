"""Packing: which hidden state predicts which token, positions, budgets, weights."""

from typing import Any

import torch

from grpo_engine.config.job import ReinforcementHyperparameters
from grpo_engine.contract.records import FinishReason, Score
from grpo_engine.objective.packing import TrainingGroup, TrainingSequence, pack, training_groups
from grpo_engine.objective.types import Completion, Group, PackedBatch, Prompt, ScoredGroup

CPU = torch.device("cpu")


def group(prompt: tuple[int, ...], *completions: tuple[int, ...], advantage: float = 1.0) -> TrainingGroup:
    return TrainingGroup(
        prompt, tuple(TrainingSequence(c, (-1.0,) * len(c), (advantage,) * len(c), 0.5) for c in completions)
    )


def packed(*groups: TrainingGroup, budget: int = 1000) -> list[PackedBatch]:
    return list(pack(groups, budget, CPU))


def test_the_prompt_occurs_once_and_positions_restart_after_it() -> None:
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
    batches = packed(*(group((1, 2), (3, 4, 5)) for _ in range(7)), budget=10)
    assert [batch.input_ids.shape[1] for batch in batches] == [10, 10, 10, 5]


def test_a_group_above_the_budget_is_split_by_completions_with_its_prompt_repeated() -> None:
    batches = packed(group((1, 2), (3, 4), (5, 6), (7, 8)), budget=6)
    assert sorted(batch.input_ids[0].tolist() for batch in batches) == [[1, 2, 3, 4, 5, 6], [1, 2, 7, 8]]


def test_a_completion_above_the_budget_is_a_row_of_its_own() -> None:
    (batch,) = packed(group((1, 2), (3, 4, 5, 6)), budget=3)
    assert batch.input_ids.shape == (1, 6)


def test_tokens_that_are_not_trained_are_in_the_row_but_not_in_the_loss() -> None:
    mixed = TrainingSequence(
        (20, 21, 22), (-1.0, 0.0, -3.0), (1.0, 0.0, 2.0), 0.5, 0.25, 7, (True, False, True)
    )
    (batch,) = packed(TrainingGroup((10, 11), (mixed,)))
    assert batch.input_ids.tolist() == [[10, 11, 20, 21, 22]]
    assert (batch.targets_N.tolist(), batch.sources_N.tolist()) == ([20, 22], [1, 3])
    assert (batch.advantages_N.tolist(), batch.sampled_logprobs_N.tolist()) == ([1.0, 2.0], [-1.0, -3.0])
    assert (batch.weights_N.tolist(), batch.kl_weights_N.tolist()) == ([0.5] * 2, [0.25] * 2)
    assert (batch.sequences_N.tolist(), batch.indices) == ([0, 0], (7,))


def scored(*rewards: float | None, has_signal: bool = True) -> ScoredGroup:
    """A group of completions of 1, 2, 3, … tokens; the last was cut."""
    completions = tuple(
        Completion(
            "",
            tuple(range(2, n + 3)),
            (-1.0,) * (n + 1),
            FinishReason.LENGTH if n + 1 == len(rewards) else FinishReason.STOP,
            0,
        )
        for n in range(len(rewards))
    )
    scores = tuple(Score(reward=reward) for reward in rewards)
    return ScoredGroup(Group(Prompt(0, "", (1,), {}), completions), scores, (0.5,) * len(rewards), has_signal)


def settings(**fields: Any) -> ReinforcementHyperparameters:
    return ReinforcementHyperparameters.model_validate({"max_completion_tokens": 4, **fields})


def weights(groups: list[TrainingGroup]) -> dict[int, float]:
    """Completion of the step → the share of one of its tokens."""
    return {sequence.index: sequence.weight for each in groups for sequence in each.sequences}


def test_shares_are_of_the_whole_step_though_groups_without_signal_are_dropped() -> None:
    step = [scored(1.0, 0.0), scored(0.5, 0.5, has_signal=False)]
    assert weights(training_groups(step, settings(loss_type="dapo"))) == {0: 1 / 6, 1: 1 / 6}
    assert weights(training_groups(step, settings(loss_type="grpo"))) == {0: 1 / 4, 1: 1 / 8}
    assert weights(training_groups(step, settings(loss_type="dr_grpo"))) == {0: 1 / 16, 1: 1 / 16}
    trained = training_groups(step, settings(loss_type="dapo", train_groups_without_signal=True))
    assert weights(trained) == dict.fromkeys(range(4), 1 / 6)


def test_masked_completions_count_as_completions_but_not_as_tokens() -> None:
    step = [scored(1.0, 0.0, 0.5)]
    masked = {"mask_truncated_completions": True}
    assert weights(training_groups(step, settings(loss_type="dapo", **masked))) == {0: 1 / 3, 1: 1 / 3}
    assert weights(training_groups(step, settings(loss_type="grpo", **masked))) == {0: 1 / 3, 1: 1 / 6}


def test_an_unscorable_completion_is_not_trained_but_counted() -> None:
    assert weights(training_groups([scored(1.0, None, 0.0)], settings(loss_type="dapo"))) == {
        0: 1 / 6,
        2: 1 / 6,
    }


def test_advantages_of_steps_are_those_of_the_sampled_tokens() -> None:
    """The second token of the first completion is a tool's."""
    written = Completion("", (2, 3, 4), (-1.0,) * 3, FinishReason.STOP, 0, sampled=(True, False, True))
    plain = Completion("", (5, 6), (-1.0,) * 2, FinishReason.STOP, 0)
    group = Group(Prompt(0, "", (1,), {}), (written, plain))
    scores, by_token = (Score(reward=1.0), Score(reward=0.0)), ((0.5, 1.5), (-0.5, -1.5))
    (found,) = training_groups([ScoredGroup(group, scores, (1.0, -1.0), True, by_token)], settings())
    assert [each.advantages for each in found.sequences] == [(0.5, 0.0, 1.5), (-0.5, -1.5)]


def test_the_kl_of_a_sequence_is_a_sum_over_tokens_and_a_mean_over_completions() -> None:
    (group,) = training_groups([scored(1.0, 0.0)], settings(loss_type="dapo", kl_placement="loss_sequence"))
    assert [(each.weight, each.kl_weight) for each in group.sequences] == [(1 / 3, 1 / 2)] * 2


def test_nothing_to_train_makes_no_row() -> None:
    assert packed() == []
