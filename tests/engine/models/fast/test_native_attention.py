"""The compiled attention of one token a row: its formula in float64, while buffers grow."""

from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_engine.models.fast import native
from grpo_engine.rollout.sampler.cache import Prefill, RowCache
from grpo_engine.rollout.sampler.rows import choose
from tests.engine.models.fast.near import DTYPES, assert_near, normal

pytestmark = pytest.mark.needs_compiled
LAYER = 0
# seven query heads a key head are computed as four, two and one
LENGTHS, GROUP, KEY_HEADS, QUERY_HEADS = (5, 1, 9), 3, 2, 14
ROWS = len(LENGTHS) * GROUP


def prompts_of(dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys and values [T, Hkv, D] of all prompts, one after another."""
    shape = sum(LENGTHS), KEY_HEADS, dim
    return normal(*shape, seed=1, dtype=dtype), normal(*shape, seed=2, dtype=dtype)


def new_tokens(steps: int, dim: int, dtype: torch.dtype) -> list[tuple[Tensor, ...]]:
    """Queries, keys and values that lie in one wider tensor, as a joined layer leaves them."""
    read = [normal(ROWS, QUERY_HEADS + 2 * KEY_HEADS, dim, seed=10 + n, dtype=dtype) for n in range(steps)]
    return [each.split([QUERY_HEADS, KEY_HEADS, KEY_HEADS], 1) for each in read]


def by_cache(steps: int, dim: int, dtype: torch.dtype) -> list[Tensor]:
    keys, values = prompts_of(dim, dtype)
    cache = RowCache(Prefill({LAYER: keys}, {LAYER: values}, LENGTHS), GROUP)
    made = []
    for query, key, value in new_tokens(steps, dim, dtype):
        if cache.is_full:
            cache.grow()
        cache.length += 1
        cache.advance()
        made.append(cache.attend(LAYER, query, key, value, dim**-0.5))
    return made


def by_formula(steps: int, dim: int, dtype: torch.dtype) -> list[Tensor]:
    """softmax(q Kᵀ / √D) V of each row alone, in float64."""
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


@pytest.mark.parametrize("dim", [32, 64, 96, 128, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_is_its_formula_while_the_buffers_grow(
    dtype: torch.dtype, dim: int, attended: list[int]
) -> None:
    for step, exact in zip(by_cache(40, dim, dtype), by_formula(40, dim, dtype), strict=True):
        assert_near(step, exact)
    assert attended == [ROWS] * 40


def test_heads_of_sixteen_are_attended_in_float32(attended: list[int]) -> None:
    for step, exact in zip(by_cache(3, 16, torch.float32), by_formula(3, 16, torch.float32), strict=True):
        assert_near(step, exact)
    assert attended == [ROWS] * 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_bit_for_bit_the_same_by_one_thread_and_by_several(dtype: torch.dtype) -> None:
    logits, numbers = normal(9, 500, dtype=dtype), torch.rand(9)
    made = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        made.append([*by_cache(5, 64, dtype), *choose(logits, numbers, 0.9)])
    torch.set_num_threads(1)
    assert all(
        torch.equal(one, other) for others in made[1:] for one, other in zip(made[0], others, strict=True)
    )


def test_unsupported_tensors_are_left_to_torch(attended: list[int]) -> None:
    rows = normal(4, 6)
    assert native.takes(rows)
    assert not native.takes(rows.double())
    assert not native.takes(rows.t())
    assert not native.takes(rows, rows.bfloat16())
    assert not native.takes(torch.empty(4, 6, device="meta"))
    for dtype, dim in ((torch.float32, 24), (torch.bfloat16, 48), (torch.float32, 272)):
        for step, exact in zip(by_cache(2, dim, dtype), by_formula(2, dim, dtype), strict=True):
            assert bool(((step.double() - exact).abs() < 0.05).all())
    assert attended == []


def test_a_long_prompt_is_left_to_the_products_of_its_group() -> None:
    prompts = [torch.zeros(1, 2, width, 32) for width in (native.LONGEST_PROMPT, native.LONGEST_PROMPT + 1)]
    states = normal(1, 2, 32), normal(1, 2, 32), normal(1, 2, 32)
    near, far = ((each, each, each[:, :1, :, 0], torch.zeros(1, dtype=torch.long)) for each in prompts)
    assert native.takes_heads(states, near)
    assert not native.takes_heads(states, far)
    assert not native.takes_heads((*states[:2], normal(1, 2, 16)), near)  # nor values of another size
