"""A decoding step recorded once and replayed (CUDA graphs), so that small models do not wait for Python.

A recording is valid for fixed buffers; create a new one if their shape changes.
"""

from collections.abc import Callable

import torch
from torch import Tensor


class RecordedStep:
    """`step(tokens_B) → logits`, all effects in place: first run normally, then recorded, then replayed."""

    def __init__(self, step: Callable[[Tensor], Tensor]) -> None:
        self.step = step
        self.is_warm = False
        self.recorded: torch.cuda.CUDAGraph | None = None

    def __call__(self, tokens_B: Tensor) -> Tensor:
        if not self.is_warm:
            self.is_warm = True
            return self.step(tokens_B)
        if self.recorded is None:
            self.tokens = tokens_B.clone()
            recorded = torch.cuda.CUDAGraph()
            with torch.cuda.graph(recorded):
                self.logits = self.step(self.tokens)
            self.recorded = recorded
        self.tokens.copy_(tokens_B)
        self.recorded.replay()
        return self.logits
