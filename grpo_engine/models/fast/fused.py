"""Formulas that a GPU computes in few kernels, compiled by torch (Inductor and Triton).

Between the matrix products, time goes by the passes over memory and by the launches, not by arithmetic. A
formula in torch's operations takes one of each for every operation; compiled, it takes one or two. Without a
compiler, and on a CPU, it is not compiled.
"""

import logging
from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec, TypeVar

import torch
import torch._dynamo.config
import torch._inductor.config
from torch import Tensor
from torch.utils._triton import has_triton

P = ParamSpec("P")
R = TypeVar("R")
_log = logging.getLogger(__name__)
MAX_VARIANTS = 64
"""Compiled versions of a formula: one for each dtype and number of dimensions, each width, each stride."""


@cache
def has_compiler() -> bool:
    """Whether torch can compile for this machine's GPU, found by trying; Triton needs a C compiler."""
    if not has_triton():
        return False
    torch._dynamo.config.recompile_limit = MAX_VARIANTS
    # a formula is a kernel or two, which is less work than the processes that would compile them
    torch._inductor.config.compile_threads = 1
    try:
        torch.compile(torch.square)(torch.ones(8, device="cuda"))
    except (RuntimeError, OSError) as problem:
        _log.warning("Training and sampling are slower, because torch cannot compile here: %s", problem)
        return False
    return True


def is_compiled(first: Tensor) -> bool:
    return first.is_cuda and has_compiler()


def fused(formula: Callable[P, R]) -> Callable[P, R]:
    """The formula, compiled if its first argument, a tensor, is on a GPU. Values only, without gradient.

    Tensors with as many rows as the first are compiled for any number of rows.
    """

    @cache
    def compiled() -> Callable[P, R]:
        return torch.compile(formula)

    @wraps(formula)
    def run(*given: P.args, **options: P.kwargs) -> R:
        first = given[0]
        assert isinstance(first, Tensor)
        if not is_compiled(first):
            return formula(*given, **options)
        # Whether a tensor wants a gradient would be one more reason to compile again.
        values = [each.detach() if isinstance(each, Tensor) else each for each in given]
        for each in values:
            if isinstance(each, Tensor) and each.shape[0] == first.shape[0]:
                torch._dynamo.maybe_mark_dynamic(each, 0)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            return compiled()(*values, **options)  # type: ignore[arg-type]

    return run
