"""The layout of variable-length attention: what each query attends to, with the kernel's definition."""

import pytest
import torch

from grpo_engine.models.fast import varlen
from tests.engine.injection import CPU
from tests.engine.models.fast.test_attention import SHAPES, assert_agree, row_by_row, spans_of, states
from tests.engine.models.fast.varlen_definition import varlen_by_definition


@pytest.mark.parametrize(("heads", "shared"), [(3, 1), (2, 4)])
@pytest.mark.parametrize("name", SHAPES)
def test_one_call_attends_as_each_row_alone(
    name: str, heads: int, shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(varlen, "varlen_attn", varlen_by_definition)
    spans = spans_of(SHAPES[name])
    given = states(spans[-1].end, heads, shared)
    assert_agree(varlen.VarlenLayout(spans, CPU), row_by_row(spans), given)


@pytest.mark.parametrize("name", SHAPES)
def test_smaller_values_are_padded_for_the_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen, "varlen_attn", varlen_by_definition)
    spans = spans_of(SHAPES[name])
    given = states(spans[-1].end, 2, 2, value_dim=3)
    assert_agree(varlen.VarlenLayout(spans, CPU), row_by_row(spans), given)


@pytest.mark.parametrize(
    ("capability", "dtype", "head_dim", "expected"),
    [
        ((9, 0), torch.bfloat16, 128, True),
        ((8, 0), torch.float16, 80, True),
        ((9, 0), torch.float32, 128, False),
        ((9, 0), torch.bfloat16, 100, False),
        ((9, 0), torch.bfloat16, 512, False),
        ((7, 5), torch.float16, 64, False),
    ],
)
def test_the_kernel_is_used_for_the_types_heads_and_gpus_that_it_supports(
    capability: tuple[int, int],
    dtype: torch.dtype,
    head_dim: int,
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert varlen.supports(torch.device("cuda", 0), dtype, head_dim) is expected
    assert not varlen.supports(CPU, dtype, head_dim)
