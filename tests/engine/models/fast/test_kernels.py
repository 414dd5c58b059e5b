"""Each kernel equals its plain formula in float64, in value and in gradient; bfloat16 stays close to it."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import linear, silu

from grpo_engine.models.fast.kernels import lora_linears, rms_norm, rotated, swiglu

TOKENS, INPUTS = 5, 6


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64, grad: bool = True) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(grad)


def value_and_gradients(
    made: Sequence[Tensor], leaves: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients of an uneven sum of all the outputs."""
    total = sum((out * torch.linspace(-1, 2, out.numel()).view_as(out)).sum() for out in made)
    return [out.detach() for out in made], list(torch.autograd.grad(total, list(leaves)))  # type: ignore[arg-type]


def assert_same(left: Sequence[Tensor], right: Sequence[Tensor], tolerance: float = 1e-12) -> None:
    assert len(left) == len(right) > 0
    for one, other in zip(left, right, strict=True):
        assert one.shape == other.shape
        assert torch.allclose(one.double(), other.double(), rtol=0, atol=tolerance)


def plain_linears(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    down: Tensor | None,
    ups: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    made = [linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True)]
    if down is None:
        return tuple(made)
    downs = down.split([up.shape[1] for up in ups])
    return tuple(y + (x @ a.t()) @ b.t() for y, a, b in zip(made, downs, ups, strict=True))


OUTPUTS = (4, 2, 3)
RANKS: dict[str, tuple[int, ...] | None] = {
    "an adapter on each": (2, 2, 2),
    "adapters of other ranks": (1, 3, 2),
    "an adapter on one only": (0, 2, 0),
    "no adapter": None,
}


def linears_of(
    ranks: tuple[int, ...] | None, *, biased: bool, trained: bool, dtype: torch.dtype = torch.float64
) -> tuple[list[Tensor], list[Tensor | None], Tensor | None, list[Tensor]]:
    weights = [normal(out, INPUTS, seed=n, dtype=dtype, grad=trained) for n, out in enumerate(OUTPUTS)]
    bias = [
        normal(out, seed=n, dtype=dtype, grad=trained) if biased else None for n, out in enumerate(OUTPUTS)
    ]
    if ranks is None:
        return weights, bias, None, []
    ups = [normal(out, rank, dtype=dtype) for out, rank in zip(OUTPUTS, ranks, strict=True)]
    return weights, bias, normal(sum(ranks), INPUTS, dtype=dtype), ups


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("case", RANKS)
def test_linears_equal_their_formula_in_value_and_gradient(case: str, biased: bool, trained: bool) -> None:
    x = normal(TOKENS, INPUTS, seed=9)
    parts = linears_of(RANKS[case], biased=biased, trained=trained)
    leaves = [x, *(each for each in flattened(parts) if each.requires_grad)]
    made, expected = (value_and_gradients(way(x, *parts), leaves) for way in (lora_linears, plain_linears))
    assert_same(made[0], expected[0])
    assert_same(made[1], expected[1])


def flattened(parts: tuple[list[Tensor], list[Tensor | None], Tensor | None, list[Tensor]]) -> list[Tensor]:
    weights, biases, down, ups = parts
    return [each for each in (*weights, *biases, down, *ups) if each is not None]


@pytest.mark.parametrize("case", ["an adapter on each", "an adapter on one only"])
def test_rows_without_a_gradient_of_their_own_train_the_adapter(case: str) -> None:
    """The first layer's: the embeddings are frozen."""
    x = normal(TOKENS, INPUTS, grad=False)
    parts = linears_of(RANKS[case], biased=True, trained=False)
    leaves = [each for each in flattened(parts) if each.requires_grad]
    made, expected = (value_and_gradients(way(x, *parts), leaves) for way in (lora_linears, plain_linears))
    assert_same(made[1], expected[1])


def test_frozen_linears_of_frozen_rows_need_no_gradient() -> None:
    x = normal(TOKENS, INPUTS, grad=False)
    made = lora_linears(x, *linears_of(None, biased=True, trained=False))
    assert [out.requires_grad for out in made] == [False] * 3


def test_linears_pass_the_numeric_check_of_gradients() -> None:
    x = normal(TOKENS, INPUTS)
    weights, biases, down, ups = linears_of((1, 3, 2), biased=True, trained=True)

    def run(x: Tensor, down: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        return lora_linears(x, rest[:3], rest[3:6], down, rest[6:])

    assert gradcheck(run, (x, down, *weights, *biases, *ups))


@pytest.mark.parametrize("trained", ["down", "ups"])
def test_one_side_of_an_adapter_is_trained_without_the_other(trained: str) -> None:
    x = normal(TOKENS, INPUTS)
    weights, biases, down, ups = linears_of((2, 2, 2), biased=False, trained=False)
    assert down is not None
    down.requires_grad_(trained == "down")
    ups = [up.detach().requires_grad_(trained == "ups") for up in ups]
    leaves = [down] if trained == "down" else ups
    found = value_and_gradients(lora_linears(x, weights, biases, down, ups), leaves)[1]
    assert_same(found, value_and_gradients(plain_linears(x, weights, biases, down, ups), leaves)[1])


def test_an_unused_output_moves_nothing() -> None:
    x = normal(TOKENS, INPUTS)
    weights, biases, down, ups = linears_of((2, 2, 2), biased=False, trained=True)
    lora_linears(x, weights, biases, down, ups)[1].sum().backward()
    assert weights[0].grad is not None
    assert not weights[0].grad.any()
    assert weights[1].grad is not None
    assert weights[1].grad.any()


def plain_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt() * weight


@pytest.mark.parametrize("shape", [(TOKENS, INPUTS), (TOKENS, 2, INPUTS), (1, INPUTS)])
@pytest.mark.parametrize("epsilon", [1e-6, 0.5])
def test_the_norm_equals_its_formula_in_value_and_gradient(shape: tuple[int, ...], epsilon: float) -> None:
    x, weight = normal(*shape), normal(INPUTS, seed=1)
    left, right = (
        value_and_gradients([way(x, weight, epsilon)], [x, weight]) for way in (rms_norm, plain_norm)
    )
    assert_same(left[0], right[0])
    assert_same(left[1], right[1])
    assert gradcheck(lambda x, w: rms_norm(x, w, epsilon), (x, weight))


def test_the_norm_of_a_slice_of_a_larger_tensor_is_the_same() -> None:
    """Queries are a slice of one product."""
    whole, weight = normal(TOKENS, 4, INPUTS), normal(INPUTS)
    found = value_and_gradients([rms_norm(whole[:, 1:3], weight, 1e-6)], [whole])
    expected = value_and_gradients([plain_norm(whole[:, 1:3], weight, 1e-6)], [whole])
    assert_same(found[1], expected[1])


@pytest.mark.parametrize("trained", ["x", "weight"])
def test_the_norm_gives_only_the_gradient_that_is_wanted(trained: str) -> None:
    x, weight = normal(TOKENS, INPUTS, grad=trained == "x"), normal(INPUTS, grad=trained == "weight")
    leaf = x if trained == "x" else weight
    found = value_and_gradients([rms_norm(x, weight, 1e-6)], [leaf])[1]
    assert_same(found, value_and_gradients([plain_norm(x, weight, 1e-6)], [leaf])[1])


def test_a_row_of_zeros_has_a_norm_and_a_gradient() -> None:
    x, weight = torch.zeros(2, INPUTS, requires_grad=True), torch.ones(INPUTS)
    out = rms_norm(x, weight, 1e-6)
    out.sum().backward()
    assert not out.any()
    assert x.grad is not None
    assert x.grad.flatten().tolist() == pytest.approx([1e3] * 2 * INPUTS, rel=1e-5)


def turn_by(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    return rotated(x, torch.cat([cosine, cosine], -1), torch.cat([-sine, sine], -1))


def plain_turn(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    turned = torch.cat([-right, left], -1)
    return x * torch.cat([cosine, cosine], -1) + turned * torch.cat([sine, sine], -1)


def test_a_rotation_equals_its_formula_in_value_and_gradient() -> None:
    x, angles = normal(TOKENS, 3, 8), normal(TOKENS, 1, 4, grad=False)
    found, expected = (
        value_and_gradients([way(x, angles.cos(), angles.sin())], [x]) for way in (turn_by, plain_turn)
    )
    assert_same(found[0], expected[0])
    assert_same(found[1], expected[1])
    assert gradcheck(lambda x: turn_by(x, angles.cos(), angles.sin()), (x,))


def test_a_rotation_takes_states_and_gradients_that_are_not_contiguous() -> None:
    x, angles = normal(3, TOKENS, 8), normal(TOKENS, 1, 4, grad=False)
    found = turn_by(x.transpose(0, 1), angles.cos(), angles.sin()).transpose(0, 1)
    expected = plain_turn(x.transpose(0, 1), angles.cos(), angles.sin()).transpose(0, 1)
    assert_same(value_and_gradients([found], [x])[1], value_and_gradients([expected], [x])[1])


def test_the_gated_unit_equals_its_formula_in_value_and_gradient() -> None:
    gate, up = normal(TOKENS, INPUTS), normal(TOKENS, INPUTS, seed=1)
    found = value_and_gradients([swiglu(gate, up)], [gate, up])
    expected = value_and_gradients([silu(gate) * up], [gate, up])
    assert_same(found[0], expected[0])
    assert_same(found[1], expected[1])
    assert gradcheck(swiglu, (gate, up))


KERNELS: dict[str, Callable[[torch.dtype], tuple[tuple[Tensor, ...], list[Tensor]]]] = {}


def kernel(make: Callable[[torch.dtype], tuple[tuple[Tensor, ...], list[Tensor]]]) -> None:
    KERNELS[make.__name__] = make


@kernel
def linears(dtype: torch.dtype) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    x = normal(TOKENS, INPUTS, dtype=dtype)
    weights, biases, down, ups = linears_of((0, 3, 2), biased=True, trained=True, dtype=dtype)
    assert down is not None
    return lora_linears(x, weights, biases, down, ups), [x, down, *weights, *ups]


@kernel
def norm(dtype: torch.dtype) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    x, weight = normal(TOKENS, INPUTS, dtype=dtype), normal(INPUTS, dtype=dtype)
    return (rms_norm(x, weight, 1e-6),), [x, weight]


@kernel
def turn(dtype: torch.dtype) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    x, angles = normal(TOKENS, 3, 8, dtype=dtype), normal(TOKENS, 1, 4, grad=False)
    return (turn_by(x, angles.cos().to(dtype), angles.sin().to(dtype)),), [x]


@kernel
def gated(dtype: torch.dtype) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    gate, up = normal(TOKENS, INPUTS, dtype=dtype), normal(TOKENS, INPUTS, seed=1, dtype=dtype)
    return (swiglu(gate, up),), [gate, up]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("name", KERNELS)
def test_smaller_numbers_stay_close_and_keep_their_type(
    name: str, dtype: torch.dtype, tolerance: float
) -> None:
    """Within the dtype's rounding of the largest number."""
    made, leaves = KERNELS[name](dtype)
    exact, exact_leaves = KERNELS[name](torch.float64)
    assert {out.dtype for out in made} == {dtype}
    found, expected = value_and_gradients(made, leaves), value_and_gradients(exact, exact_leaves)
    assert {gradient.dtype for gradient in found[1]} == {dtype}
    for left, right in zip(found, expected, strict=True):
        assert_same(left, right, tolerance * max(float(each.abs().max()) for each in right if each.numel()))


@pytest.mark.parametrize("name", KERNELS)
def test_without_gradients_the_values_are_the_same_and_the_inputs_untouched(name: str) -> None:
    with_gradients, leaves = KERNELS[name](torch.float64)
    before = [leaf.detach().clone() for leaf in leaves]
    with torch.no_grad():
        without, _ = KERNELS[name](torch.float64)
    assert_same(with_gradients, without, 0.0)
    assert_same(leaves, before, 0.0)
