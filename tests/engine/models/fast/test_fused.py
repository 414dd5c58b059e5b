"""Compiled formulas, here by Inductor for a CPU: equal to the formula, compiled once for any row count."""

from collections.abc import Callable
from functools import partial
from inspect import unwrap
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.exc import InvalidCxxCompiler

from grpo_engine.models.fast import fused, operations


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


Arguments = Callable[[int], tuple[Any, ...]]
"""Rows → what a formula takes."""
FORMULAS: dict[str, tuple[Callable[..., Any], Arguments]] = {
    "norm": (operations._normed, lambda rows: (normal(rows, 48), normal(48), 1e-6)),
    "norm of heads": (operations._normed, lambda rows: (normal(rows, 4, 16), normal(16), 1e-6)),
    "norm's gradient": (
        operations._normed_back,
        lambda rows: (normal(rows, 48), normal(48), normal(rows, 48), 1e-6),
    ),
    "gradient of a norm's weight": (
        operations._normed_back_of_weight,
        lambda rows: (normal(rows, 48), normal(48), normal(rows, 48), 1e-6),
    ),
    "rotary positions": (
        operations._rotated,
        lambda rows: (normal(rows, 4, 16), normal(rows, 1, 16), normal(rows, 1, 16)),
    ),
    "feed-forward gate": (operations._swiglu, lambda rows: (normal(rows, 40), normal(rows, 40))),
    "its gradient": (
        operations._swiglu_back,
        lambda rows: (normal(rows, 40), normal(rows, 40), normal(rows, 40)),
    ),
    "log-probabilities": (
        operations._logprobs_and_gradients,
        lambda rows: (normal(rows, 80), torch.arange(rows), 0.7),
    ),
}


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Formulas are compiled for a CPU; without a C++ compiler only as far as torch's operations."""
    monkeypatch.setattr(fused, "is_compiled", lambda _: True)
    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.usefixtures("compiling")
def test_a_compiled_formula_equals_the_formula_for_any_number_of_rows(name: str) -> None:
    formula, arguments = FORMULAS[name]
    expected = [unwrap(formula)(*arguments(rows)) for rows in (5, 9, 30)]
    torch._dynamo.utils.counters.clear()
    # without vectors, because Inductor's cache does not distinguish the values of ATEN_CPU_CAPABILITY
    with torch._inductor.config.patch({"cpp.simdlen": 1}):
        found = [formula(*arguments(rows)) for rows in (5, 9, 30)]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_a_formula_is_not_compiled_for_a_cpu() -> None:
    torch._dynamo.utils.counters.clear()
    operations._normed(normal(5, 48), normal(48), 1e-6)
    assert not torch._dynamo.utils.counters["stats"]
