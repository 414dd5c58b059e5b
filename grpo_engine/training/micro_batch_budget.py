"""How many tokens a training pass takes at a time: as many as fit, found before the first step.

Smaller pieces are the same mathematics (`test_invariance.py`), so an out-of-memory costs a
repetition, never a result. Boundary: sizes only; what is computed is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch.distributed.fsdp import FSDPModule

from grpo_engine.contract.errors import DeviceMemoryError
from grpo_engine.models.policy import Policy
from grpo_engine.objective.packing import TrainingGroup, TrainingSequence
from grpo_engine.objective.types import Prompt

T = TypeVar("T")

DEVICE_TOKENS = 16_384
"""Where the deployment states no budget."""
CPU_BYTES = 160 * 2**20
"""Activations of a micro-batch on a CPU: beyond this it gains nothing, and its caches lose."""
CPU_TOKENS = range(512, 8192)
CHECKPOINT_BELOW = 4096
"""Pieces this small waste a GPU: rather compute activations twice than cut further."""
SMALLEST_TOKENS = 64
"""Below it a micro-batch is a single completion anyway."""


class Pieces:
    """`in_pieces(gradients)` and the warnings that it has to tell."""

    def __init__(self, policy: Policy, tokens: int | None) -> None:
        self.policy = policy
        self._is_by_caches = tokens is None and policy.device.type == "cpu"
        self.tokens = _cpu_tokens(policy) if self._is_by_caches else tokens or DEVICE_TOKENS
        self.told: list[tuple[str, str]] = []
        """Code and sentence of each warning since they were last taken."""

    def __call__(self, gradients: Callable[[int], T], clear: Callable[[], None], step: int) -> T:
        """`gradients(token_budget)`, again with less memory where the device is too small for it.

        Raises DeviceMemoryError where the smallest pieces do not fit.
        """
        while True:
            try:
                return gradients(self.tokens)
            except torch.OutOfMemoryError as error:
                clear()
                torch.cuda.empty_cache()
                self._give_way(step, error)

    def make_room(self, longest_prompt: int) -> None:
        """For a prompt of so many tokens beside what is trained: each part of a split group repeats it.

        Nothing where the deployment stated the budget or a GPU's memory does.
        """
        if self._is_by_caches:
            self.tokens += longest_prompt

    def _give_way(self, step: int, error: torch.OutOfMemoryError) -> None:
        """Keep fewer activations, or take fewer tokens."""
        if isinstance(self.policy.model, FSDPModule):
            message = f"step {step} does not fit a device, and with sharded weights no rank can repeat it"
            raise DeviceMemoryError(message, evidence=(str(error)[:500],)) from error
        if self.tokens <= CHECKPOINT_BELOW and self.policy.keep_fewer_activations():
            message = "out of memory: activations are computed again in the backward pass instead of kept"
            self.told.append(("gradient_checkpointing", message))
            return
        if self.tokens <= SMALLEST_TOKENS:
            message = f"step {step} does not fit the device's memory"
            raise DeviceMemoryError(message, evidence=(str(error)[:500],)) from error
        self.tokens //= 2
        message = f"out of memory: the step is repeated with {self.tokens} tokens at a time"
        self.told.append(("token_budget_halved", message))


def _cpu_tokens(policy: Policy) -> int:
    """As many tokens as keep about `CPU_BYTES` of activations."""
    config = policy.model.config
    hidden, layers = config.hidden_size, config.num_hidden_layers
    between = getattr(config, "intermediate_size", None) or 4 * hidden
    # the rows around a layer's products, in and out, and its attention's weights
    per_token = layers * (8 * hidden + 3 * between) * policy.compute_dtype.itemsize
    return max(CPU_TOKENS.start, min(CPU_TOKENS.stop, CPU_BYTES // per_token))


def longest_group(prompts: Sequence[Prompt], group_size: int, max_completion_tokens: int) -> TrainingGroup:
    """A group as large as this run can meet, of no weight: what a memory probe trains."""
    longest = max(prompts, key=lambda prompt: len(prompt.token_ids)).token_ids
    ids = tuple(longest[place % len(longest)] for place in range(max_completion_tokens))
    zeros = (0.0,) * max_completion_tokens
    sequences = (TrainingSequence(ids, zeros, zeros, weight=0.0, index=i) for i in range(group_size))
    return TrainingGroup(tuple(longest), tuple(sequences))
