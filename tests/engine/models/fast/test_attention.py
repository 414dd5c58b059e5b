"""Dense attention over packed groups: the library's kernel, and each row alone, in value and gradient."""

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from grpo_engine.models.fast import varlen
from grpo_engine.models.fast.attention import DENSE_KEYS, DenseLayout, attention_for
from grpo_engine.models.fast.varlen import VarlenLayout
from grpo_engine.models.shared_prompt_attention import WASTE, Attention, PackedLayout, blocks_of
from grpo_engine.objective.types import GroupSpan
from tests.engine.injection import CPU
from tests.engine.models.fast.varlen_definition import varlen_by_definition

DIM, SCALE = 4, 0.4
MIXED = ((9, (4, 1, 30)), (3, (2, 6)), (40, (5,)), (1, (1, 2, 3, 4)))
SHAPES = {
    "mixed lengths": MIXED,
    "one token each": ((1, (1,)), (1, (1, 1))),
    "one completion of one token": ((5, (1,)),),
    "prompts alone": ((4, ()), (1, ()), (5, ())),
    "prompts alone beside groups": ((4, ()), (4, (2, 3))),
    "padding within a block": ((10, (8, 9)), (11, (9, 7)), (12, (10,))),
}


def spans_of(shapes: Sequence[tuple[int, tuple[int, ...]]]) -> list[GroupSpan]:
    spans, start = [], 0
    for prompt, completions in shapes:
        spans.append(GroupSpan(start, prompt, completions))
        start = spans[-1].end
    return spans


def states(
    tokens: int,
    heads: int,
    shared: int,
    dtype: torch.dtype = torch.float64,
    dim: int = DIM,
    value_dim: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    shapes = (heads * shared, dim), (heads, dim), (heads, value_dim or dim)
    made = [torch.randn(tokens, *shape, generator=generator, dtype=torch.float64) for shape in shapes]
    query, key, value = (each.to(dtype).requires_grad_(True) for each in made)
    return query, key, value


def row_by_row(spans: Sequence[GroupSpan], window: int = 1000, sinks: Tensor | None = None) -> Attention:
    """Softmax attention of each completion after its own copy of the prompt: the definition."""

    class RowByRow:
        def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
            shared = query.shape[1] // key.shape[1]
            keys, values = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
            out = query.new_zeros(*query.shape[:2], value.shape[2])
            for span in spans:
                prompt = list(range(span.start, span.completions_start))
                first = span.completions_start
                for length in (0, *span.completion_tokens):
                    columns = [*prompt, *range(first, first + length)]
                    own = columns[len(prompt) :] if length else prompt
                    first += length
                    scores = torch.einsum("qhd,khd->hqk", query[own], keys[columns]) * scale
                    last = len(columns) - len(own)
                    seen = torch.ones(scores.shape[1:]).tril(last).triu(last - window + 1).bool()
                    scores = scores.masked_fill(~seen, float("-inf"))
                    if sinks is not None:
                        scores = torch.cat([scores, sinks.view(-1, 1, 1).expand(-1, len(own), 1)], 2)
                    weights = scores.softmax(-1)[..., : len(columns)]
                    out[own] = torch.einsum("hqk,khd->qhd", weights, values[columns])
            return out.flatten(1)

    return RowByRow()


def result(attention: Attention, given: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    out = attention.attend(0, *given, SCALE)
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype, device=out.device).view_as(out)
    return out.detach(), torch.autograd.grad((out * weights).sum(), given)


def assert_agree(left: Attention, right: Attention, given: tuple[Tensor, Tensor, Tensor]) -> None:
    (value, gradients), (expected, expected_gradients) = result(left, given), result(right, given)
    assert torch.allclose(value, expected, rtol=0, atol=1e-12)
    for one, other in zip(gradients, expected_gradients, strict=True):
        assert one.shape == other.shape
        assert torch.allclose(one, other, rtol=0, atol=1e-11)


@pytest.mark.parametrize(("heads", "shared"), [(3, 1), (2, 2), (1, 4), (2, 4)])
@pytest.mark.parametrize("name", SHAPES)
def test_dense_and_kernel_attention_equal_each_row_alone(name: str, heads: int, shared: int) -> None:
    spans = spans_of(SHAPES[name])
    given = states(spans[-1].end, heads, shared)
    expected = row_by_row(spans)
    assert_agree(DenseLayout(spans, CPU, torch.float64), expected, given)
    assert_agree(PackedLayout(spans, CPU), expected, given)


@pytest.mark.parametrize("value_dim", [3, 7])
@pytest.mark.parametrize("name", SHAPES)
def test_values_may_have_another_size_than_keys(name: str, value_dim: int) -> None:
    spans = spans_of(SHAPES[name])
    given, expected = states(spans[-1].end, 2, 2, value_dim=value_dim), row_by_row(spans)
    assert_agree(DenseLayout(spans, CPU, torch.float64), expected, given)
    assert_agree(PackedLayout(spans, CPU), expected, given)


class Special:
    """A layout that every layer calls with these options."""

    def __init__(self, layout: PackedLayout | VarlenLayout, **options: Any) -> None:
        self.layout, self.options = layout, options

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        return self.layout.attend(layer, query, key, value, scale, **self.options)


@pytest.mark.parametrize("window", [1, 3, 7, 30, 200])
@pytest.mark.parametrize("name", SHAPES)
def test_a_window_ends_at_the_same_token_as_in_each_row_alone(
    name: str, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(varlen, "varlen_attn", varlen_by_definition)
    spans = spans_of(SHAPES[name])
    given, expected = states(spans[-1].end, 2, 2), row_by_row(spans, window)
    for layout in (PackedLayout(spans, CPU), VarlenLayout(spans, CPU)):
        assert_agree(Special(layout, window=window), expected, given)


@pytest.mark.parametrize("window", [None, 3, 200])
@pytest.mark.parametrize("name", SHAPES)
def test_sinks_take_their_share_of_each_query(name: str, window: int | None) -> None:
    spans, sinks = spans_of(SHAPES[name]), torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)
    given, expected = states(spans[-1].end, 2, 2), row_by_row(spans, window or 1000, sinks)
    for layout in (PackedLayout(spans, CPU), VarlenLayout(spans, CPU)):
        (value, gradients), right = (
            result(Special(layout, window=window, sinks=sinks), given),
            result(expected, given),
        )
        for one, other in zip((value, *gradients), (right[0], *right[1]), strict=True):
            assert torch.allclose(one, other, rtol=0, atol=1e-5)  # its softmax is in float32


def test_large_scores_are_not_rounded_in_bfloat16() -> None:
    spans = spans_of(MIXED)
    rounded = [(6 * each).detach().bfloat16() for each in states(spans[-1].end, 2, 2)]
    scores = SCALE * torch.einsum("qhd,khd->hqk", *(each[:, :2].double() for each in rounded[:2]))
    assert scores.max() > 50  # where two numbers of bfloat16 are at least 0.25 apart
    found = DenseLayout(spans, CPU, torch.bfloat16).attend(0, *rounded, SCALE)
    exact = row_by_row(spans).attend(0, *(each.double() for each in rounded), SCALE)
    assert float((found - exact).abs().max()) < 0.01 * float(exact.abs().max())


def test_these_shapes_have_blocks_of_several_groups_with_padding() -> None:
    blocks = blocks_of(spans_of(SHAPES["padding within a block"]), CPU)
    assert len(blocks) == 2
    assert all(len(block.inside) < block.queries.numel() for block in blocks)
    assert len(blocks_of(spans_of(MIXED), CPU)) > 2


shapes = st.lists(
    st.tuples(st.integers(1, 7), st.lists(st.integers(1, 6), max_size=4).map(tuple)), min_size=1, max_size=5
)


@settings(deadline=None, max_examples=60)
@given(shapes=shapes, shared=st.sampled_from([1, 2]), waste=st.sampled_from([0, 8, WASTE["cpu"]]))
def test_any_groups_are_attended_as_each_row_alone(
    shapes: list[tuple[int, tuple[int, ...]]], shared: int, waste: int
) -> None:
    spans = spans_of(shapes)
    with patch.dict(WASTE, cpu=waste):
        layout = DenseLayout(spans, CPU, torch.float64)
    assert_agree(layout, row_by_row(spans), states(spans[-1].end, 2, shared))


def test_completions_of_natural_lengths_waste_no_more_than_further_blocks_cost() -> None:
    lengths = tuple(range(10, 410, 25))
    blocks = blocks_of(spans_of([(20, lengths), (45, lengths)]), CPU)
    grids = sum(block.queries.numel() * block.keys.shape[1] for block in blocks)
    own = sum(n * (prompt + n) for prompt in (20, 45) for n in lengths) + 20 * 20 + 45 * 45
    assert own < grids <= own + len(blocks) * WASTE["cpu"]
    everything_in_one = 2 * len(lengths) * lengths[-1] * (45 + lengths[-1])
    assert grids < everything_in_one / 2
    assert len(blocks) < len(lengths)


def transposed(out: Tensor) -> Tensor:
    return out.t().contiguous().t()


def expanded(out: Tensor) -> Tensor:
    return out.sum() * torch.ones(())


@pytest.mark.parametrize("after", [transposed, expanded])
def test_gradients_arrive_in_any_memory_layout(after: Callable[[Tensor], Tensor]) -> None:
    spans = spans_of(MIXED)
    given = states(spans[-1].end, 2, 2)
    found, expected = (
        torch.autograd.grad(after(way.attend(0, *given, SCALE)).square().sum(), given)
        for way in (DenseLayout(spans, CPU, torch.float64), row_by_row(spans))
    )
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-9)


def test_without_gradients_the_values_are_the_same() -> None:
    spans = spans_of(MIXED)
    given, layout = states(spans[-1].end, 2, 2), DenseLayout(spans, CPU, torch.float64)
    expected, _ = result(layout, given)
    with torch.no_grad():
        assert torch.equal(layout.attend(0, *given, SCALE), expected)


def test_bfloat16_stays_close_to_float64() -> None:
    """Within four roundings of the largest number."""
    spans = spans_of(MIXED)
    exact_value, exact_gradients = result(row_by_row(spans), states(spans[-1].end, 2, 2))
    given = states(spans[-1].end, 2, 2, torch.bfloat16)
    value, gradients = result(DenseLayout(spans, CPU, torch.bfloat16), given)
    assert value.dtype == torch.bfloat16
    for one, other in zip((value, *gradients), (exact_value, *exact_gradients), strict=True):
        assert float((one.double() - other).abs().max()) < 2**-6 * float(other.abs().max())


def test_a_completion_sees_neither_its_siblings_nor_other_groups() -> None:
    spans = spans_of(((3, (2, 2)), (2, (3,))))
    query, key, value = states(spans[-1].end, 2, 1)
    layout = DenseLayout(spans, CPU, torch.float64)
    out = layout.attend(0, query, key, value, SCALE)
    (gradient,) = torch.autograd.grad(out[5:7].sum(), value)
    assert [column for column, row in enumerate(gradient) if row.any()] == [0, 1, 2, 5, 6]


def test_long_rows_go_through_the_librarys_kernel() -> None:
    sizes = {"vocab_size": 8, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1))

    def chosen(prompt: int, completions: tuple[int, ...]) -> type[Attention]:
        return type(attention_for(spans_of(((2, (1,)), (prompt, completions))), model, torch.float32))

    assert chosen(DENSE_KEYS - 5, (5, 1)) is DenseLayout
    assert chosen(DENSE_KEYS - 5, (5, 6)) is PackedLayout
    assert chosen(DENSE_KEYS, ()) is DenseLayout
