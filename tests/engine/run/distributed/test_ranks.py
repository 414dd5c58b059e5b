"""How a step's work is divided; a single rank does all of it without communication."""

import pytest
import torch

from grpo_engine.objective.packing import TrainingGroup, TrainingSequence, pack
from grpo_engine.parallel.ranks import Ranks, idle_group
from grpo_engine.parallel.shards import fill, gathered

CPU = torch.device("cpu")


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [0, 1, 5, 12])
def test_the_ranks_parts_are_all_values_in_order_and_about_equal(world: int, count: int) -> None:
    values = list(range(count))
    parts = [Ranks(rank, world).part(values) for rank in range(world)]
    assert [value for _, part in parts for value in part] == values
    assert [first for first, part in parts if part] == [part[0] for _, part in parts if part]
    sizes = [len(part) for _, part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_one_rank_packs_its_groups_and_is_never_idle() -> None:
    sequence = TrainingSequence((2, 3), (0.0, 0.0), (1.0, 1.0), 1.0)
    groups = [TrainingGroup((1,), (sequence,)), TrainingGroup((4, 5), (sequence,))]
    own, idle = Ranks().passes(groups, 4, torch.nn.Linear(1, 1), CPU)
    expected = list(pack(groups, 4, CPU))
    assert [batch.input_ids.tolist() for batch in own] == [batch.input_ids.tolist() for batch in expected]
    assert idle == []


def test_an_idle_pass_has_no_share_in_the_loss_and_a_name_of_its_own() -> None:
    batches = [next(pack([idle_group(number)], 1, CPU)) for number in range(3)]
    assert {batch.indices for batch in batches} == {(-1,), (-2,), (-3,)}
    for batch in batches:
        assert not batch.weights_N.any()
        assert not batch.kl_weights_N.any()
        assert not batch.advantages_N.any()


def test_one_rank_is_first_and_decides_alone() -> None:
    assert Ranks().is_first
    assert not Ranks(1, 2).is_first
    assert Ranks().joined(["a", "b"]) == ["a", "b"]


def test_a_plain_tensor_is_whole_already() -> None:
    target, value = torch.zeros(2, requires_grad=True), torch.tensor([1.0, 2.0])
    assert gathered(value) is value
    fill(target, value)
    assert target.tolist() == [1.0, 2.0]
