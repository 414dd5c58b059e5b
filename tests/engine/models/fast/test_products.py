"""Products by either library: the same sums in another order."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from grpo_engine.models.fast.products import (
    MIN_ONEDNN_ELEMENTS,
    MIN_ROWS,
    ROWS,
    add_product,
    has_onednn,
    product,
    rowwise_product,
)
from grpo_engine.models.fast.reordered import MOST_COMPILED, ReorderedLinear

SHAPES = {"small": (5, 24, 40), "large": (96, 320, 160)}
"""Rows, outputs, inputs: below and above the limit for oneDNN."""
COUNTS = (*range(1, MIN_ROWS + 2), 9, 15, 33, ROWS, ROWS + 1, 200)
"""Numbers of rows at which libraries change their way."""


def normal(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def packed(weight: Tensor, rank: int) -> Callable[[Tensor], Tensor]:
    """The layer for oneDNN, with an adapter of this rank; 0: without."""
    outputs, inputs = weight.shape
    down = normal(rank, inputs, seed=4, dtype=weight.dtype) if rank else None
    layer = ReorderedLinear.of(weight, None, down, normal(outputs, rank, seed=5, dtype=weight.dtype))
    return lambda rows: layer(rows)[0]


def exact(x: Tensor, weight: Tensor) -> Tensor:
    return x.double() @ weight.double().t()


def test_the_two_sizes_lie_on_both_sides_of_the_border() -> None:
    sizes = {name: outputs * inputs for name, (_, outputs, inputs) in SHAPES.items()}
    assert sizes["small"] < MIN_ONEDNN_ELEMENTS <= sizes["large"]


@pytest.fixture(params=[1, 2, 8])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """MKL divides rows among the threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.usefixtures("num_threads")
@pytest.mark.parametrize("inputs", [40, 160, 528, 1552, 3000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_of_a_product_does_not_depend_on_the_rows_beside_it(inputs: int, dtype: torch.dtype) -> None:
    """Libraries divide long sums, for some numbers of rows only."""
    x = normal(256, inputs, seed=1, dtype=dtype)
    for outputs in (24, 320):
        weight = normal(outputs, inputs, seed=3, dtype=dtype)
        layers = [lambda rows, weight=weight: product(rows, weight)]
        if has_onednn(dtype, x.device):
            layers = [partial(rowwise_product, weight=weight)]
            layers += [packed(weight, rank) for rank in (0, 20, MOST_COMPILED // inputs + 1)]
        for layer in layers:
            together = layer(x)
            for count in COUNTS:
                assert torch.equal(layer(x[:count]), together[:count])
                assert torch.equal(layer(x[5 : 5 + count]), together[5 : 5 + count])


@pytest.mark.parametrize("size", SHAPES)
@pytest.mark.parametrize("is_view", [False, True], ids=["weight", "transposed view"])
@pytest.mark.parametrize(
    ("dtype", "close"), [(torch.float32, 1e-5), (torch.float64, 1e-13), (torch.bfloat16, 2**-8)], ids=str
)
def test_a_product_is_the_sum_over_the_inputs_with_either_library(
    size: str, is_view: bool, dtype: torch.dtype, close: float
) -> None:
    rows, outputs, inputs = SHAPES[size]
    x, bias = normal(rows, inputs, seed=1, dtype=dtype), normal(outputs, seed=2, dtype=dtype)
    weight = normal(outputs, inputs, seed=3, dtype=dtype)
    weight = weight.t().contiguous().t() if is_view else weight
    wanted = exact(x, weight)
    limit = {"rtol": close, "atol": close * float(wanted.abs().max())}
    assert torch.allclose(product(x, weight).double(), wanted, **limit)
    assert torch.allclose(product(x, weight, bias).double(), wanted + bias.double(), **limit)
    total = torch.ones(rows, outputs, dtype=dtype)
    add_product(total, x, weight)
    assert torch.allclose(total.double(), wanted + 1, **limit)


def test_a_transposed_input_is_supported() -> None:
    """As for the gradient of a weight: rows and inputs both transposed."""
    grad, x = normal(96, 320, seed=1, dtype=torch.float32), normal(96, 160, seed=2, dtype=torch.float32)
    assert torch.allclose(product(grad.t(), x.t()).double(), exact(grad.t(), x.t()), atol=1e-4)
