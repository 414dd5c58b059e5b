"""The number of tokens in a training pass: as many as fit the device.

Smaller micro-batches give the same result (`test_invariance.py`), so an out-of-memory error costs only a
repetition.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch.distributed.fsdp import FSDPModule

from grpo_engine.contract.errors import DeviceMemoryError
from grpo_engine.contract.events import Warned
from grpo_engine.models.device_memory import feed_forward_width
from grpo_engine.models.policy import Policy
from grpo_engine.objective.packing import TrainingGroup
from grpo_engine.objective.types import Prompt

T = TypeVar("T")

DEVICE_TOKENS = 16_384
"""Budget of a GPU if the deployment sets none."""
CPU_BYTES = 160 * 2**20
"""Activations of a micro-batch on a CPU. Larger ones are not faster, because they exceed the caches."""
CPU_TOKENS = range(512, 8192)
CHECKPOINT_BELOW = 4096
"""Tokens below which a micro-batch would waste a GPU, so activations are recomputed first."""
SMALLEST_TOKENS = 64
"""Minimum budget; a micro-batch is then a single completion."""


class MicroBatchBudget:
    """Tokens per micro-batch of one policy; halved when the device runs out of memory."""

    def __init__(self, policy: Policy, tokens: int | None) -> None:
        """`tokens`: budget that the deployment sets; None: derived from the device."""
        self.policy = policy
        self._is_by_caches = tokens is None and policy.device.type == "cpu"
        self.tokens = _cpu_tokens(policy) if self._is_by_caches else tokens or DEVICE_TOKENS
        self._warnings: list[Warned] = []

    def run(self, compute: Callable[[int], T], clear: Callable[[], None], step: int) -> T:
        """`compute(tokens)`, repeated with less memory after an out-of-memory error.

        `clear` drops partial gradients. Raises DeviceMemoryError if the smallest micro-batches do not fit.
        """
        while True:
            try:
                return compute(self.tokens)
            except torch.OutOfMemoryError as error:
                clear()
                torch.cuda.empty_cache()
                self._reduce(step, error)

    def add_prompt(self, longest_prompt: int) -> None:
        """Add room for a prompt of this many tokens, because each part of a split group repeats its prompt.

        Does nothing if the deployment or a GPU's memory sets the budget.
        """
        if self._is_by_caches:
            self.tokens += longest_prompt

    def take_warnings(self) -> list[Warned]:
        """Warnings since the last call."""
        taken, self._warnings = self._warnings, []
        return taken

    def _reduce(self, step: int, error: torch.OutOfMemoryError) -> None:
        """Keep fewer activations, or halve the tokens."""
        if isinstance(self.policy.model, FSDPModule):
            message = f"step {step} does not fit a device, and with sharded weights no rank can repeat it"
            raise DeviceMemoryError(message, evidence=(str(error)[:500],)) from error
        if self.tokens <= CHECKPOINT_BELOW and self.policy.keep_fewer_activations():
            self._warn("gradient_checkpointing", "activations are recomputed in the backward pass")
            return
        if self.tokens <= SMALLEST_TOKENS:
            message = f"step {step} does not fit the device's memory"
            raise DeviceMemoryError(message, evidence=(str(error)[:500],)) from error
        self.tokens //= 2
        self._warn("token_budget_halved", f"the step is repeated with {self.tokens} tokens per micro-batch")

    def _warn(self, code: str, action: str) -> None:
        self._warnings.append(Warned(code=code, message=f"out of memory: {action}"))


def _cpu_tokens(policy: Policy) -> int:
    """The number of tokens whose activations take about `CPU_BYTES`."""
    config = policy.model.config
    hidden, layers = config.hidden_size, config.num_hidden_layers
    # inputs and outputs of a layer's products, and its attention weights
    per_token = layers * (8 * hidden + 3 * feed_forward_width(config)) * policy.compute_dtype.itemsize
    return max(CPU_TOKENS.start, min(CPU_TOKENS.stop, CPU_BYTES // per_token))


def longest_group(prompts: Sequence[Prompt], group_size: int, max_completion_tokens: int) -> TrainingGroup:
    """The largest possible group of this run, with weight 0, for the memory probe."""
    longest = max(prompts, key=lambda prompt: len(prompt.token_ids)).token_ids
    ids = tuple(longest[place % len(longest)] for place in range(max_completion_tokens))
    return TrainingGroup.of(longest, *[ids] * group_size, weight=0.0)
