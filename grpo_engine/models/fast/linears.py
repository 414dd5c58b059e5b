"""Linear layers of transformers and peft that read the same rows, as one call.

Tensors are used in place; only joining layers for sampling copies them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor

from grpo_engine.models.fast.kernels import lora_linears
from grpo_engine.models.fast.reordered import ReorderedLinear, can_reorder

Layer = Callable[[Tensor], tuple[Tensor, ...]]
"""Rows [T, I] → the output of each linear layer that reads them."""


@dataclass(frozen=True, slots=True)
class Linears:
    """The tensors of linear layers that read the same rows."""

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor | None, ...]
    down: Tensor | None
    ups: tuple[Tensor, ...]

    @classmethod
    def of(cls, *modules: Any, dtype: torch.dtype) -> Self:
        """Pack the modules in this dtype; wider weights and adapters get gradients in their own dtype."""
        bases: list[Any] = [
            each.get_base_layer() if isinstance(each, LoraLayer) else each for each in modules
        ]
        weights = tuple(base.weight.to(dtype) for base in bases)
        biases = tuple(None if base.bias is None else base.bias.to(dtype) for base in bases)
        pairs = [_adapter(module, weight) for module, weight in zip(modules, weights, strict=True)]
        downs, ups = [down for down, _ in pairs], [up for _, up in pairs]
        joined = torch.cat(downs) if any(len(down) for down in downs) else None
        return cls(weights, biases, joined, tuple(ups) if joined is not None else ())

    def joined(self) -> Layer:
        """One layer with all outputs side by side, for few rows; a copy, without gradient.

        The adapter is merged in float32 only; with fewer bits a small change would be rounded away.
        """
        biases = [
            weight.new_zeros(len(weight)) if bias is None else bias
            for weight, bias in zip(self.weights, self.biases, strict=True)
        ]
        bias = None if all(each is None for each in self.biases) else torch.cat(biases)
        up = torch.block_diag(*self.ups) if self.down is not None else None
        weight = torch.cat(self.weights) if len(self.weights) > 1 else self.weights[0]
        down = self.down
        if up is not None and down is not None and weight.dtype == torch.float32:
            weight, down, up = weight + up @ down, None, None
        if can_reorder(weight):
            return ReorderedLinear.of(weight, bias, down, up)
        return type(self)((weight,), (bias,), down, () if up is None else (up,))

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        return lora_linears(x, self.weights, self.biases, self.down, self.ups)


def _adapter(module: Any, weight: Tensor) -> tuple[Tensor, Tensor]:
    """A [r, I] and scaled B [O, r] of the active adapter; of rank 0 if there is none."""
    if isinstance(module, LoraLayer) and not module.disable_adapters:
        for name in module.active_adapters:
            if name in module.lora_A:
                down = cast(Tensor, module.lora_A[name].weight)
                up = cast(Tensor, module.lora_B[name].weight)
                return down.to(weight.dtype), (up * module.scaling[name]).to(weight.dtype)
    return weight.new_zeros(0, weight.shape[1]), weight.new_zeros(weight.shape[0], 0)
