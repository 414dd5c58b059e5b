"""Attention over packed groups as dense products, with its own backward pass.

Fastest on a CPU: two batched products and one softmax for all completions of a block. The scores are kept for
the backward pass, so it suits rows of some hundred tokens; longer ones use torch's kernel (`PackedLayout`).
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function
from transformers import PreTrainedModel

from grpo_engine.models.device_memory import cached_heads
from grpo_engine.models.fast.operations import at_least_float32, scores_of
from grpo_engine.models.fast.varlen import VarlenLayout, supports
from grpo_engine.models.shared_prompt_attention import Attention, Block, PackedLayout, blocks_of
from grpo_engine.objective.types import GroupSpan

Grouped = tuple[Tensor, Tensor, Tensor]
"""A block's queries, keys and values, by key head: [R · Hkv, rows, D] or, of values, [R · Hkv, rows, Dv]. Its
rows are ordered by query head."""


DENSE_KEYS = 1024
"""Maximum keys in a row whose scores are kept; these then take as much memory as the rest of a layer."""


def attention_for(
    spans: Sequence[GroupSpan], model: PreTrainedModel, dtype: torch.dtype, *, waste: int | None = None
) -> Attention:
    """The dense products if they are fast and fit in memory, otherwise torch's kernel; `waste` as in
    `blocks_of`."""
    longest = max(span.prompt_tokens + max(span.completion_tokens, default=0) for span in spans)
    if model.device.type == "cpu" and longest <= DENSE_KEYS:
        return DenseLayout(spans, model.device, dtype, waste)
    return packed_attention(spans, model, dtype)


def packed_attention(spans: Sequence[GroupSpan], model: PreTrainedModel, dtype: torch.dtype) -> Attention:
    """torch's kernel for sequences of any length if the GPU has it, otherwise the one with masks."""
    config = model.config.get_text_config()
    if supports(model.device, dtype, cached_heads(config)[1]):
        return VarlenLayout(spans, model.device)
    return PackedLayout(spans, model.device)


class DenseLayout:
    """`attend` of packed rows through one autograd function."""

    def __init__(
        self, spans: Sequence[GroupSpan], device: torch.device, dtype: torch.dtype, waste: int | None = None
    ) -> None:
        self.blocks = [(block, _bias(block, dtype)) for block in blocks_of(spans, device, waste=waste)]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """query [T, Hq, D], key [T, Hkv, D] and value [T, Hkv, Dv] → [T, Hq · Dv]."""
        if not torch.is_grad_enabled():
            return _forward(query, key, value, self.blocks, scale)[0]
        made = _DenseAttention.apply(query, key, value, self.blocks, scale)  # type: ignore[no-untyped-call]
        return cast(Tensor, made)


def _bias(block: Block, dtype: torch.dtype) -> Tensor:
    """[1 or R, 1, Tq, Tk], 0 if a query attends to a key, otherwise −∞."""
    mask = block.mask
    if mask is None:
        steps = torch.arange(block.queries.shape[1], device=block.queries.device)
        mask = (steps[:, None] >= steps)[None, None]
    wide = torch.promote_types(dtype, torch.float32)
    return torch.zeros(mask.shape, dtype=wide, device=mask.device).masked_fill_(~mask, float("-inf"))


Biased = tuple[Block, Tensor]


def _forward(
    query: Tensor, key: Tensor, value: Tensor, blocks: Sequence[Biased], scale: float
) -> tuple[Tensor, list[Tensor]]:
    """The output and each block's weights [R · Hkv, shared · Tq, Tk]."""
    out = query.new_empty(len(query), query.shape[1] * value.shape[2])
    kept = []
    for block, bias in blocks:
        queries, keys, values = _take(block, query, key, value)
        scores = scores_of(at_least_float32(queries) * scale, keys)
        rows, width = block.queries.shape
        scores.view(rows, -1, width, scores.shape[2]).add_(bias)
        weights = scores.softmax(-1).to(values.dtype)
        _put(out, block, key.shape[1], torch.bmm(weights, values))
        kept.append(weights)
    return out, kept


def _take(block: Block, query: Tensor, key: Tensor, value: Tensor) -> Grouped:
    def taken(states: Tensor, columns: Tensor) -> Tensor:
        chosen = states.flatten(1).index_select(0, columns.flatten())
        return _grouped(chosen, columns, key.shape[1], states.shape[2])

    return taken(query, block.queries), taken(key, block.keys), taken(value, block.keys)


def _grouped(states: Tensor, columns: Tensor, heads: int, dim: int) -> Tensor:
    """[R · W, H · D] → [R · Hkv, (H / Hkv) · W, D]."""
    count, width = columns.shape
    shaped = states.view(count, width, heads, -1, dim).permute(0, 2, 3, 1, 4)
    return shaped.reshape(count * heads, -1, dim)


def _flat(states: Tensor, columns: Tensor, heads: int) -> Tensor:
    """[R · Hkv, (H / Hkv) · W, D] → [R · W, H · D]."""
    count, width = columns.shape
    shaped = states.view(count, heads, -1, width, states.shape[2]).permute(0, 3, 1, 2, 4)
    return shaped.reshape(count * width, -1)


def _put(out: Tensor, block: Block, heads: int, states: Tensor) -> None:
    """Write a block's queries, without padding, into out [T, Hq · D]."""
    out.index_copy_(0, block.columns, _flat(states, block.queries, heads).index_select(0, block.inside))


def _back(grad: Tensor, block: Block, heads: int, dim: int) -> Tensor:
    """Gradient [T, Hq · D] of a block's queries, grouped; 0 for its padding."""
    rows = grad.new_zeros(block.queries.numel(), grad.shape[1])
    rows.index_copy_(0, block.inside, grad.index_select(0, block.columns))
    return _grouped(rows, block.queries, heads, dim)


class _DenseAttention(Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, blocks: Sequence[Biased], scale: float
    ) -> Tensor:
        out, kept = _forward(query, key, value, blocks, scale)
        ctx.blocks, ctx.scale = blocks, scale
        ctx.save_for_backward(query, key, value, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        """With weights P: dV = Pᵀ dO; dS = P ∘ (dP − Σ dP ∘ P); dQ = dS K, dK = dSᵀ Q."""
        query, key, value, *kept = ctx.saved_tensors
        heads = key.shape[1]
        grad_query = query.new_empty(len(query), query.shape[1] * query.shape[2])
        grad_key, grad_value = (each.new_zeros(len(each), heads * each.shape[2]) for each in (key, value))
        for (block, _), weights in zip(ctx.blocks, kept, strict=True):
            queries, keys, values = _take(block, query, key, value)
            back = _back(grad, block, heads, value.shape[2])
            lost = torch.bmm(back, values.transpose(1, 2))
            lost = torch._softmax_backward_data(lost, weights, -1, weights.dtype).mul_(ctx.scale)
            _put(grad_query, block, heads, torch.bmm(lost, keys))
            columns = block.keys.flatten()
            found = torch.bmm(lost.transpose(1, 2), queries)
            grad_key.index_add_(0, columns, _flat(found, block.keys, heads))
            found = torch.bmm(weights.transpose(1, 2), back)
            grad_value.index_add_(0, columns, _flat(found, block.keys, heads))
        return grad_query.view_as(query), grad_key.view_as(key), grad_value.view_as(value), None, None
