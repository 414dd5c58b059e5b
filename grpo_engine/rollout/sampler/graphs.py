"""Decoding steps recorded once and replayed (CUDA graphs), so that small models do not wait for Python.

A recording is valid only for fixed buffers, so each shape of the cache's buffers has its own
(`fixed_cache.py`).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

CAPTURE_MODE = "thread_local"
"""Record and restrict only this thread's work, because another may train meanwhile (`max_staleness`)."""


class RecordedStep:
    """`step(tokens_B) → logits`, all effects in place: first run normally, then recorded, then replayed."""

    def __init__(self, num_rows: int, like: Tensor) -> None:
        self.tokens = like.new_zeros(num_rows)
        self.is_warm = False
        self.recorded: torch.cuda.CUDAGraph | None = None

    def __call__(self, step: Callable[[Tensor], Tensor], tokens_B: Tensor) -> Tensor:
        """Logits of the first rows, whose next tokens are `tokens_B`."""
        self.tokens[: len(tokens_B)].copy_(tokens_B)
        return self._logits(step)[: len(tokens_B)]

    def _logits(self, step: Callable[[Tensor], Tensor]) -> Tensor:
        if not self.is_warm:
            self.is_warm = True
            return step(self.tokens)
        if self.recorded is None:
            recorded = torch.cuda.CUDAGraph()
            with torch.cuda.graph(recorded, capture_error_mode=CAPTURE_MODE):
                self.logits = step(self.tokens)
            self.recorded = recorded
        self.recorded.replay()
        return self.logits


class RecordedSteps:
    """One recording for each shape of the buffers, which never move.

    The step is an argument: a reference to its decoder would keep the decoder's memory until the next garbage
    collection.
    """

    def __init__(self) -> None:
        self.by_shape: dict[Any, RecordedStep] = {}

    def __call__(self, step: Callable[[Tensor], Tensor], shape: tuple[int, ...], tokens_B: Tensor) -> Tensor:
        """`shape`: current shape of the buffers; its first number is that of the rows."""
        if shape not in self.by_shape:
            self.by_shape[shape] = RecordedStep(shape[0], tokens_B)
        return self.by_shape[shape](step, tokens_B)
