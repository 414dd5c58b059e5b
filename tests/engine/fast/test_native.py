"""The compiled operations: their formulas in float64, each row by itself, and what they leave to torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from grpo_engine.fast import native
from grpo_engine.fast.kernels import rms_norm, rotated, swiglu
from grpo_engine.sampler.cache import Prefill, RowCache
from grpo_engine.sampler.rows import choose

DTYPES = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-8}
"""Of a result in float32 sums, rounded once: half a step of bfloat16 is 2^-9 of the number."""
LAYER = 0


@pytest.fixture(autouse=True)
def _no_gradient() -> Iterator[None]:
    with torch.no_grad():
        yield


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_near(found: Tensor, exact: Tensor) -> None:
    allowed = TOLERANCE[found.dtype] * (1 + exact.abs())
    assert bool(((found.double() - exact).abs() <= allowed).all())


def test_they_are_compiled_here() -> None:
    assert native.library() is not None


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
def test_a_rotation_is_its_formula(dtype: torch.dtype) -> None:
    x = normal(5, 6, 24, dtype=dtype)[:, 2:]
    cosine, sine = normal(5, 1, 24, seed=1, dtype=dtype), normal(5, 1, 24, seed=2, dtype=dtype)
    exact = x.double() * cosine.double() + x.double().roll(12, -1) * sine.double()
    assert_near(native.rotated(x, cosine, sine), exact)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gate_is_its_formula_from_the_smallest_to_the_largest(dtype: torch.dtype) -> None:
    both = torch.cat([torch.linspace(-100, 100, 401).expand(3, -1), normal(3, 401)], 1).to(dtype)
    gate, up = both.chunk(2, 1)
    assert_near(native.swiglu(gate, up), silu(gate.double()) * up.double())


@torch.inference_mode()
def test_where_no_gradient_can_be_asked_for_the_kernels_ask_them(monkeypatch: pytest.MonkeyPatch) -> None:
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


LENGTHS, GROUP, KEY_HEADS, QUERY_HEADS = (5, 1, 9), 3, 2, 6
ROWS = len(LENGTHS) * GROUP


def prompts_of(dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys and values [T, Hkv, D] of all prompts, one after another."""
    shape = sum(LENGTHS), KEY_HEADS, dim
    return normal(*shape, seed=1, dtype=dtype), normal(*shape, seed=2, dtype=dtype)


def new_tokens(steps: int, dim: int, dtype: torch.dtype) -> list[tuple[Tensor, ...]]:
    """Queries, keys and values that lie in one wider tensor, as a joined layer leaves them."""
    read = [normal(ROWS, QUERY_HEADS + 2 * KEY_HEADS, dim, seed=10 + n, dtype=dtype) for n in range(steps)]
    return [each.split([QUERY_HEADS, KEY_HEADS, KEY_HEADS], 1) for each in read]


def by_cache(steps: int, dim: int, dtype: torch.dtype, *, shared: bool) -> list[Tensor]:
    keys, values = prompts_of(dim, dtype)
    cache = RowCache(Prefill({LAYER: keys}, {LAYER: values}, LENGTHS), GROUP, shared=shared)
    made = []
    for query, key, value in new_tokens(steps, dim, dtype):
        if cache.is_full:
            cache.grow()
        cache.length += 1
        cache.advance()
        made.append(cache.attend(LAYER, query, key, value, dim**-0.5))
    return made


def by_formula(steps: int, dim: int, dtype: torch.dtype) -> list[Tensor]:
    """softmax(q Kᵀ / √D) V of each row by itself, in float64."""
    prompts = [states.double().split(LENGTHS) for states in prompts_of(dim, dtype)]
    seen = [[each[row // GROUP] for each in prompts] for row in range(ROWS)]
    made = []
    for query, key, value in new_tokens(steps, dim, dtype):
        rows = []
        for row in range(ROWS):
            for place, states in enumerate((key, value)):
                seen[row][place] = torch.cat([seen[row][place], states[row : row + 1].double()])
            keys, values = (states.repeat_interleave(QUERY_HEADS // KEY_HEADS, 1) for states in seen[row])
            scores = torch.einsum("hd,thd->ht", query[row].double(), keys) * dim**-0.5
            rows.append(torch.einsum("ht,thd->hd", scores.softmax(-1), values).flatten())
        made.append(torch.stack(rows))
    return made


@pytest.fixture
def attended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each call of the compiled attention."""
    calls: list[int] = []
    attend = native.attend

    def counted(states: native.States, *rest: Any) -> Tensor:
        calls.append(len(states[0]))
        return attend(states, *rest)

    monkeypatch.setattr(native, "attend", counted)
    return calls


@pytest.mark.parametrize("shared", [True, False], ids=["prompts shared", "prompts in each row"])
@pytest.mark.parametrize("dim", [32, 64, 96, 128, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_is_its_formula_while_the_buffers_grow(
    dtype: torch.dtype, dim: int, shared: bool, attended: list[int]
) -> None:
    found = by_cache(40, dim, dtype, shared=shared)
    for step, exact in zip(found, by_formula(40, dim, dtype), strict=True):
        assert_near(step, exact)
    assert attended == [ROWS] * 40


def test_heads_of_sixteen_are_attended_in_float32(attended: list[int]) -> None:
    for step, exact in zip(
        by_cache(3, 16, torch.float32, shared=True), by_formula(3, 16, torch.float32), strict=True
    ):
        assert_near(step, exact)
    assert attended == [ROWS] * 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_bit_for_bit_the_same_by_one_thread_and_by_several(dtype: torch.dtype) -> None:
    logits, numbers = normal(9, 500, dtype=dtype), torch.rand(9)
    made = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        made.append([*by_cache(5, 64, dtype, shared=True), *choose(logits, numbers, 0.9)])
    torch.set_num_threads(1)
    assert all(
        torch.equal(one, other) for others in made[1:] for one, other in zip(made[0], others, strict=True)
    )


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


def test_what_they_do_not_know_is_left_to_torch(attended: list[int]) -> None:
    rows = normal(4, 6)
    assert native.takes(rows)
    assert not native.takes(rows.double())
    assert not native.takes(rows.t())
    assert not native.takes(rows, rows.bfloat16())
    assert not native.takes(torch.empty(4, 6, device="meta"))
    for dtype, dim in ((torch.float32, 24), (torch.bfloat16, 48), (torch.float32, 272)):
        for step, exact in zip(by_cache(2, dim, dtype, shared=True), by_formula(2, dim, dtype), strict=True):
            assert bool(((step.double() - exact).abs() < 0.05).all())
    assert attended == []


def test_a_long_prompt_is_left_to_the_products_of_its_group() -> None:
    prompts = [torch.zeros(1, 2, width, 32) for width in (native.LONGEST_PROMPT, native.LONGEST_PROMPT + 1)]
    states = normal(1, 2, 32), normal(1, 2, 32), normal(1, 2, 32)
    near, far = ((each, each, each[:, :1, :, 0], torch.zeros(1, dtype=torch.long)) for each in prompts)
    assert native.takes_heads(states, near)
    assert not native.takes_heads(states, far)


def test_a_machine_without_memory_says_so() -> None:
    states = normal(1, 2, 32), normal(1, 2, 32), normal(1, 2, 32)
    buffers = torch.zeros(1, 2, 4, 32), torch.zeros(1, 2, 4, 32), torch.zeros(1, 1, 4)
    with pytest.raises(MemoryError, match="attend"):
        native.attend(states, buffers, 2**60, 1.0, None)


def test_what_was_compiled_for_other_arguments_or_not_at_all_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "VERSION", native.VERSION + 1)
    assert native.library.__wrapped__() is None
    monkeypatch.undo()
    monkeypatch.setattr(native, "__file__", str(tmp_path / "__init__.py"))
    assert native.library.__wrapped__() is None
