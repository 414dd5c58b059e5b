"""Layers laid out for oneDNN: the same numbers, rounded once."""

import pytest
import torch
from torch import Tensor

from grpo_engine.models.fast.reordered import ReorderedLinear, can_reorder

INPUTS, OUTPUTS, RANK = 40, 24, 6


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def test_float64_and_gpu_weights_are_not_reordered() -> None:
    weight = torch.zeros(512, 128)
    assert can_reorder(weight)
    assert not can_reorder(weight.double())
    assert not can_reorder(torch.zeros(512, 128, dtype=torch.bfloat16, device="meta"))


def test_a_large_float32_layer_is_the_plain_product() -> None:
    weight, x, bias = normal(512, 128).float(), normal(7, 128, seed=1).float(), normal(512, seed=4).float()
    (found,) = ReorderedLinear.of(weight, bias, None, None)(x)
    assert torch.allclose(found.double(), x.double() @ weight.double().t() + bias.double(), atol=1e-5)


@pytest.mark.needs_onednn_bfloat16
@pytest.mark.parametrize("rows", [1, 7, 64, 130])
@pytest.mark.parametrize("biased", [True, False])
def test_a_layer_and_its_adapter_are_one_product_rounded_once(rows: int, biased: bool) -> None:
    weight, x = normal(OUTPUTS, INPUTS), normal(rows, INPUTS, seed=1)
    down, up = normal(RANK, INPUTS, seed=2), normal(OUTPUTS, RANK, seed=3)
    bias = normal(OUTPUTS, seed=4) if biased else None
    (found,) = ReorderedLinear.of(weight, bias, down, up)(x)
    low = (x.double() @ down.double().t()).bfloat16().double()
    exact = x.double() @ weight.double().t() + low @ up.double().t()
    exact = exact + bias.double() if bias is not None else exact
    assert found.dtype == torch.bfloat16
    # half a step of bfloat16 at the result, and float32 sums that may round `low` to its neighbour
    assert torch.allclose(found.double(), exact, rtol=2**-8, atol=0.05)


@pytest.mark.needs_onednn_bfloat16
def test_a_layer_without_adapter_is_the_plain_product() -> None:
    weight, x = normal(OUTPUTS, INPUTS), normal(5, INPUTS, seed=1)
    (found,) = ReorderedLinear.of(weight, None, None, None)(x)
    assert torch.allclose(found.double(), x.double() @ weight.double().t(), rtol=2**-8, atol=1e-3)
