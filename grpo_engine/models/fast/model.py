"""A Llama-like transformers model (Llama, Mistral, Qwen2, Qwen3, …) run by our own kernels.

It has no weights of its own: every tensor belongs to the transformers model or to its peft adapter. A model
is supported if it has the right parts and `policy.py` proves at load that the results agree; otherwise the
model's own forward pass is used. Training (packed rows) and decoding (one token per row) differ only in the
attention.

Left out: dropout, quantised weights, mixtures of experts, sliding windows, soft caps.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation

from grpo_engine.models.fast.kernels import rms_norm, rotated, swiglu
from grpo_engine.models.fast.linears import Layer, Linears
from grpo_engine.models.fast.operations import at_least_float32
from grpo_engine.models.shared_prompt_attention import Attention, window_of


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """One decoder layer's linear layers."""

    attention_in: Layer
    attention_out: Layer
    feed_in: Layer
    feed_out: Layer
    norms: tuple[Tensor, Tensor]
    """[H] of the attention and of the feed-forward block; float32 if the layers are joined."""
    head_norms: Tensor | None = None
    """[Hq + Hkv, D] of queries and keys together, if the layers are joined."""


def _without_autocast(kind: str) -> AbstractContextManager[object]:
    """Turn autocast off, but only if it is on: entering its context takes as long as a small operation."""
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def reads_at_once(tensor: Tensor) -> bool:
    """Whether Python can read the tensor without waiting for a device, and no CUDA graph records its use."""
    return tensor.device.type == "cpu"


FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Model types that the kernels are written for; a run gets a warning if the proof refuses one of them."""
KNOWN_POSITIONS = 512
"""Positions whose angles are computed together."""


class FastModel:
    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        self.model = model
        self.dtype = dtype
        """Number format of the products. If the weights are wider, so are the sums between layers."""
        self.base = cast(Any, model.base_model)
        self.layers: tuple[Any, ...] = tuple(self.base.layers)
        self.known_angles = torch.empty(0), torch.empty(0)
        """Rotary angles of positions 0, 1, …, computed once instead of in every pass (CPU only)."""
        self.checkpointed = False
        """Keep only each layer's input and recompute the rest in the backward pass, to save memory."""

    @classmethod
    def fitting(cls, model: PreTrainedModel, dtype: torch.dtype) -> FastModel | None:
        """The model for these kernels; None if it has a part that they do not support."""
        try:
            fits = _fits(model.base_model)
        except AttributeError:
            return None
        return cls(model, dtype) if fits else None

    def tensors(self) -> list[LayerTensors]:
        """Every layer's current tensors, for one pass."""
        return [LayerTensors(*_linears(layer, self.dtype), _norms(layer)) for layer in self.layers]

    def joined_tensors(self) -> list[LayerTensors]:
        """For many passes without gradient: joins layers that read the same rows, which halves the calls."""
        made = []
        for layer in self.layers:
            read, left, fed, out = (each.joined() for each in _linears(layer, self.dtype))
            before, after = (at_least_float32(weight.detach()) for weight in _norms(layer))
            made.append(LayerTensors(read, left, fed, out, (before, after), _head_norms(layer.self_attn)))
        return made

    def hidden(
        self, tokens_T: Tensor, positions_T: Tensor, attention: Attention, tensors: Sequence[LayerTensors]
    ) -> Tensor:
        """Token ids and positions [T] → final hidden states [T, H], ready for the output layer."""
        with _without_autocast(tokens_T.device.type):  # every dtype is explicit here
            x = self.base.embed_tokens(tokens_T)
            angles = self.angles(x.to(self.dtype), positions_T)
            for number, (layer, weights) in enumerate(zip(self.layers, tensors, strict=True)):
                if self.checkpointed and torch.is_grad_enabled():
                    x = checkpoint(
                        self._layer, number, layer, weights, x, angles, attention, use_reentrant=False
                    )
                else:
                    x = self._layer(number, layer, weights, x, angles, attention)
            return rms_norm(x, self.base.norm.weight, self.base.norm.variance_epsilon).to(self.dtype)

    def angles(self, x: Tensor, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine [T, 1, D] of the rotary angles, as `rotated` takes them."""
        if not reads_at_once(positions_T):
            return self._new_angles(x, positions_T)
        longest = int(positions_T.max()) + 1
        if longest > len(self.known_angles[0]) or self.known_angles[0].dtype != x.dtype:
            with torch.inference_mode(False):  # training reads them too
                known = torch.arange(-(-longest // KNOWN_POSITIONS) * KNOWN_POSITIONS)
                self.known_angles = self._new_angles(x, known)
        cosine, sine = self.known_angles
        return cosine.index_select(0, positions_T), sine.index_select(0, positions_T)

    def _new_angles(self, x: Tensor, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        cosine, sine = self.base.rotary_emb(x, positions_T[None])
        signs = torch.ones_like(sine[0, 0])
        signs[: len(signs) // 2] = -1
        return cosine[0, :, None], (sine[0] * signs)[:, None]

    def _layer(
        self,
        number: int,
        layer: Any,
        weights: LayerTensors,
        x: Tensor,
        angles: tuple[Tensor, Tensor],
        attention: Attention,
    ) -> Tensor:
        """One decoder layer: [T, H] → [T, H]."""
        x = x + self._attention(number, layer, weights, x, angles, attention)
        return x + self._feed_forward(layer, weights, x)

    def _attention(
        self,
        number: int,
        layer: Any,
        weights: LayerTensors,
        x: Tensor,
        angles: tuple[Tensor, Tensor],
        attention: Attention,
    ) -> Tensor:
        block = layer.self_attn
        norm = layer.input_layernorm
        read = weights.attention_in(rms_norm(x, weights.norms[0], norm.variance_epsilon).to(self.dtype))
        states = [each.view(len(x), -1, block.head_dim) for each in read]
        query, key, value = _heads(block, weights, states, angles)
        out = attention.attend(number, query, key, value, block.scaling)
        return weights.attention_out(out)[0]

    def _feed_forward(self, layer: Any, weights: LayerTensors, x: Tensor) -> Tensor:
        norm = layer.post_attention_layernorm
        read = weights.feed_in(rms_norm(x, weights.norms[1], norm.variance_epsilon).to(self.dtype))
        gate, up = read if len(read) == 2 else read[0].chunk(2, 1)
        return weights.feed_out(swiglu(gate, up))[0]


def _linears(layer: Any, dtype: torch.dtype) -> tuple[Linears, Linears, Linears, Linears]:
    """Input and output of the attention and of the feed-forward block, in this dtype."""
    attention, feed = layer.self_attn, layer.mlp
    return (
        Linears.of(attention.q_proj, attention.k_proj, attention.v_proj, dtype=dtype),
        Linears.of(attention.o_proj, dtype=dtype),
        Linears.of(feed.gate_proj, feed.up_proj, dtype=dtype),
        Linears.of(feed.down_proj, dtype=dtype),
    )


def _norms(layer: Any) -> tuple[Tensor, Tensor]:
    return layer.input_layernorm.weight, layer.post_attention_layernorm.weight


def _heads(
    block: Any, weights: LayerTensors, states: Sequence[Tensor], angles: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [T, heads, D], normalised and rotated; `states` is one tensor if joined."""
    if len(states) == 3:
        query, key = _headwise(block, "q_norm", states[0]), _headwise(block, "k_norm", states[1])
        return rotated(query, *angles), rotated(key, *angles), states[2]
    # S key heads, S value heads, S · num_key_value_groups query heads
    num_keys = states[0].shape[1] // (block.num_key_value_groups + 2)
    both, value = states[0][:, :-num_keys], states[0][:, -num_keys:]
    if weights.head_norms is not None:
        both = rms_norm(both, weights.head_norms, block.q_norm.variance_epsilon)
    both = rotated(both, *angles)
    return both[:, :-num_keys], both[:, -num_keys:], value


def _head_norms(block: Any) -> Tensor | None:
    if getattr(block, "q_norm", None) is None:
        return None
    keys = block.k_proj.out_features // block.head_dim
    queries = keys * block.num_key_value_groups
    each = block.q_norm.weight.expand(queries, -1), block.k_norm.weight.expand(keys, -1)
    return at_least_float32(torch.cat(each).detach())


def _headwise(block: Any, name: str, states: Tensor) -> Tensor:
    """Qwen3 normalises each head's queries and keys."""
    norm = getattr(block, name, None)
    return states if norm is None else rms_norm(states, norm.weight, norm.variance_epsilon)


FIXED_ANGLES = ("default", "linear", "llama3", "yarn")
"""Types of rotary positions whose angles do not depend on the longest sequence. With any other type, a proof
on short sequences would not detect errors, and the angles of a recorded step would not change."""


def _fits(base: Any) -> bool:
    """Whether the parts that a proof does not check are supported. Raises AttributeError."""
    return (
        window_of(base.config) is None
        and base.rotary_emb.rope_type in FIXED_ANGLES
        and all(
            isinstance(layer.mlp.act_fn, torch.nn.SiLU | SiLUActivation)
            and all(map(_is_plain, _products(layer)))
            and len(_norms(layer)) == 2
            for layer in base.layers
        )
    )


def _products(layer: Any) -> tuple[Any, ...]:
    attention, feed = layer.self_attn, layer.mlp
    projections = attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj
    return *projections, feed.gate_proj, feed.up_proj, feed.down_proj


def _is_plain(module: Any) -> bool:
    """A linear layer, possibly with a plain LoRA adapter without dropout."""
    if not isinstance(module, LoraLayer):
        return type(module) is torch.nn.Linear
    return (
        type(module.get_base_layer()) is torch.nn.Linear
        and not module.lora_variant
        and not any(module.lora_bias.values())
        and all(type(dropout) is torch.nn.Identity for dropout in module.lora_dropout.values())
    )
