"""The compiled operations: their formulas in float64, each row alone, and the cases left to torch."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from grpo_engine.models.fast import native
from grpo_engine.models.fast.kernels import rms_norm, rotated, swiglu
from grpo_engine.rollout.sampler.rows import choose
from tests.engine.models.fast.near import DTYPES, TOLERANCE, assert_near, normal

pytestmark = pytest.mark.needs_compiled


@pytest.fixture(autouse=True)
def _no_gradient() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 31, 64, 200])
def test_a_norm_is_its_formula(dtype: torch.dtype, width: int) -> None:
    x, weight = normal(7, width, dtype=dtype), normal(width, seed=1)
    wide = x.double()
    exact = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    assert_near(native.rms_norm(x, weight, 1e-6), exact)


@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_of_a_wider_row_are_normed_each_with_its_own_weight(dtype: torch.dtype) -> None:
    x, weight = normal(5, 6, 20, dtype=dtype)[:, 1:4], normal(3, 20, seed=1)
    wide = x.double()
    exact = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert native.takes(x)
    assert_near(native.rms_norm(x, weight, 1e-5), exact)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [24, 32, 80, 128])
def test_a_rotation_is_its_formula(dtype: torch.dtype, dim: int) -> None:
    x = normal(5, 6, dim, dtype=dtype)[:, 2:]
    cosine, sine = normal(5, 1, dim, seed=1, dtype=dtype), normal(5, 1, dim, seed=2, dtype=dtype)
    exact = x.double() * cosine.double() + x.double().roll(dim // 2, -1) * sine.double()
    assert_near(native.rotated(x, cosine, sine), exact)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", [1, 16, 40])
@pytest.mark.parametrize("rows", [1, 4, 7])
def test_a_product_appended_to_its_input_is_its_formula(rows: int, rank: int, dtype: torch.dtype) -> None:
    x, down = normal(rows, 60, dtype=dtype)[:, :50], normal(50, rank, seed=1)
    columns = torch.nn.functional.pad(down, (0, -rank % native.LANES))
    found = native.append_product(x, columns, rank)
    assert torch.equal(found[:, :50], x)
    # the sum of 50 products may be close to 0, its parts are not
    exact = x.double() @ down.double()
    assert torch.allclose(found[:, 50:].double(), exact, rtol=TOLERANCE[dtype], atol=2e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gate_is_its_formula_from_the_smallest_to_the_largest(dtype: torch.dtype) -> None:
    both = torch.cat([torch.linspace(-100, 100, 401).expand(3, -1), normal(3, 401)], 1).to(dtype)
    gate, up = both.chunk(2, 1)
    assert_near(native.swiglu(gate, up), silu(gate.double()) * up.double())


def test_kernels_use_compiled_operations_if_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    x, angle = normal(4, 2, 8), normal(4, 1, 8, seed=1)
    calls = [
        lambda: rms_norm(x[:, 0].contiguous(), normal(8), 1e-6),
        lambda: rotated(x, angle, angle),
        lambda: swiglu(x[:, 0].contiguous(), x[:, 1].contiguous()),
        lambda: choose(normal(3, 9), torch.tensor([0.1, 0.5, 0.9]), 0.7)[1],
    ]
    compiled = [call() for call in calls]
    monkeypatch.setattr(native, "library", lambda: None)
    for call, found in zip(calls, compiled, strict=True):
        assert torch.allclose(call(), found, atol=1e-6)


def exact_gradients(made: Callable[..., Tensor], grad: Tensor, *given: Tensor) -> Sequence[Tensor]:
    """Of torch's own operations, in float64."""
    wide = [each.double().requires_grad_() for each in given]
    with torch.enable_grad():
        return torch.autograd.grad(made(*wide), wide, grad.double())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("by_head", [True, False])
def test_the_way_back_through_a_norm_is_that_of_its_formula(dtype: torch.dtype, by_head: bool) -> None:
    x, grad = normal(5, 6, 20, dtype=dtype)[:, 1:4], normal(5, 3, 20, seed=3, dtype=dtype)
    weight = normal(3, 20, seed=1) if by_head else normal(20, seed=1)

    def formula(wide: Tensor) -> Tensor:
        return wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()

    (exact,) = exact_gradients(formula, grad, x)
    assert_near(native.rms_norm_back(x, weight, grad, 1e-5), exact)
    assert_near(native.rms_norm(x, weight, 1e-5), formula(x.double()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gradients_of_a_gate_are_those_of_its_formula(dtype: torch.dtype) -> None:
    both = torch.cat([torch.linspace(-100, 100, 401).expand(3, -1), normal(3, 401)], 1).to(dtype)
    gate, up = both.chunk(2, 1)
    grad = normal(3, 401, seed=5, dtype=dtype)
    exact = exact_gradients(lambda gate, up: silu(gate) * up, grad, gate, up)
    for found, wanted in zip(native.swiglu_back(gate, up, grad), exact, strict=True):
        assert_near(found, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [3, 128, 1000])
def test_log_probabilities_entropies_and_slopes_are_those_of_a_softmax(
    dtype: torch.dtype, vocab: int
) -> None:
    logits = 4 * normal(6, vocab, dtype=dtype)
    logits[2, 1:] = -math.inf  # one token has all
    targets = torch.tensor([0, 1, 0, vocab - 1, vocab // 2, 2])
    exact = (logits.double() / 0.7).log_softmax(-1)
    slopes = logits.clone()
    chosen, entropies = native.logprobs(slopes, targets, 0.7)
    one = torch.nn.functional.one_hot(targets, vocab)
    assert torch.allclose(chosen.double(), exact.gather(1, targets[:, None]).squeeze(1), rtol=1e-6, atol=2e-6)
    assert torch.allclose(
        entropies.double(), -(exact.exp() * exact).nan_to_num().sum(-1), rtol=1e-5, atol=2e-6
    )
    assert_near(slopes, exact.exp() - one)
    assert bool((slopes[2] == 0).all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_with_and_without_gradient_a_kernel_gives_the_same_bits(dtype: torch.dtype) -> None:
    """A reference or a teacher that is the policy itself must differ by nothing."""
    x, angle = normal(5, 3, 32, dtype=dtype), normal(5, 1, 32, seed=1, dtype=dtype)
    calls = [
        lambda x: rms_norm(x, normal(32, seed=2), 1e-6),
        lambda x: rotated(x, angle, angle),
        lambda x: swiglu(x[:, 0].contiguous(), x[:, 1].contiguous()),
    ]
    without = [call(x) for call in calls]
    with torch.enable_grad():
        given = x.clone().requires_grad_()
        made = [call(given) for call in calls]
    assert all(each.requires_grad for each in made)
    assert all(torch.equal(one, other.detach()) for one, other in zip(without, made, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_bit_for_bit_the_same_alone_as_among_others(dtype: torch.dtype) -> None:
    logits, numbers, weight = normal(9, 500, dtype=dtype), torch.rand(9), normal(500, seed=1)
    among = [
        native.rms_norm(logits, weight, 1e-6),
        native.swiglu(logits, logits),
        *choose(logits, numbers, 1.0),
    ]
    row = logits[4:5]
    alone = [native.rms_norm(row, weight, 1e-6), native.swiglu(row, row), *choose(row, numbers[4:5], 1.0)]
    assert all(torch.equal(one[4:5], other) for one, other in zip(among, alone, strict=True))


def test_failed_memory_allocation_raises_memory_error() -> None:
    states = normal(1, 2, 32), normal(1, 2, 32), normal(1, 2, 32)
    buffers = torch.zeros(1, 2, 4, 32), torch.zeros(1, 2, 4, 32), torch.zeros(1, 1, 4)
    prompts = torch.zeros(1, 2, 1, 32), torch.zeros(1, 2, 1, 32), torch.zeros(1, 1, 1), torch.tensor([0])
    with pytest.raises(MemoryError, match="attend"):
        native.attend(states, buffers, 2**50, 1.0, prompts)


def test_a_missing_or_outdated_library_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "VERSION", native.VERSION + 1)
    assert native.library.__wrapped__() is None
    monkeypatch.undo()
    monkeypatch.setattr(native, "__file__", str(tmp_path / "__init__.py"))
    assert native.library.__wrapped__() is None
