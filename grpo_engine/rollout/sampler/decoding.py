"""Ways to run a model token by token over the groups of some prompts, fastest first.

`SharedDecoder` computes and keeps each prompt once for its group with our attention, by our own kernels (the
Llama family) or through the model's own layers. `CacheDecoder` uses the model's own forward pass and cache,
for models that our attention does not support. `PlainDecoder` keeps nothing and recomputes whole rows, for
models without such a cache. `decoder_choice.py` takes the first one that reproduces the model's own logits.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, PreTrainedModel

from grpo_engine.models.device_memory import free_bytes, weight_bytes
from grpo_engine.models.fast.attention import attention_for
from grpo_engine.models.fast.model import FastModel, reads_at_once
from grpo_engine.models.fast.products import product, rowwise_product
from grpo_engine.models.fast.reordered import ReorderedLinear, can_reorder
from grpo_engine.models.forward import compute_dtype, output_head, own_states
from grpo_engine.models.shared_prompt_attention import Attention, using
from grpo_engine.objective.types import GroupSpan
from grpo_engine.rollout.sampler.cache import Prefill, RowCache
from grpo_engine.rollout.sampler.fixed_cache import BufferSizes, FixedCache
from grpo_engine.rollout.sampler.graphs import RecordedSteps


class Decoder(Protocol):
    def start(self, prompts_P: Sequence[Sequence[int]], group_size: int) -> Tensor:
        """Run the prompts; returns logits [P·G, V] of each row's first token."""
        ...

    def step(self, tokens_B: Tensor) -> Tensor:
        """Append a token to each row; returns logits [B, V] of the next token."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows [B'], a tensor on the CPU or the device."""
        ...


LARGEST_COPY = 2**25
"""Largest output layer, in bytes, that is copied for decoding; the limit bounds memory."""


def _output_layer(
    model: PreTrainedModel, dtype: torch.dtype, *, reordered: bool
) -> Callable[[Tensor], Tensor]:
    """Hidden states [B, H] → logits [B, V]."""
    head = output_head(model)
    if type(head) is not torch.nn.Linear:
        return head
    weight, bias = head.weight.to(dtype), None if head.bias is None else head.bias.to(dtype)
    if not reordered or not can_reorder(weight):
        return lambda hidden: product(hidden.to(dtype), weight, bias)
    if weight.nbytes > LARGEST_COPY:
        return lambda hidden: rowwise_product(hidden, weight, bias)
    layer = ReorderedLinear.of(weight, bias, None, None)
    return lambda hidden: layer(hidden)[0]


COPY_SHARE = 0.25
"""Largest share of a GPU's free memory that the joined layers may take."""


def _has_room_for_copy(model: torch.nn.Module) -> bool:
    free = free_bytes(next(model.parameters()).device)
    return free is None or weight_bytes(model) <= COPY_SHARE * free


class Kernels:
    """Our own kernels; the policy's tensors are read once, at the start of a decoding."""

    def __init__(self, fast: FastModel) -> None:
        self.fast = fast
        self.on_cpu = reads_at_once(fast.base.embed_tokens.weight)
        self.tensors = fast.joined_tensors() if _has_room_for_copy(fast.base) else fast.tensors()
        self.logits = _output_layer(fast.model, fast.dtype, reordered=self.on_cpu)

    def __call__(self, tokens_T: Tensor, positions_T: Tensor, attention: Attention) -> Tensor:
        """Tokens [T], their positions [T] and their attention → hidden states [T, H]."""
        # On a CPU each operation's overhead counts; it is smallest in inference mode.
        with torch.inference_mode() if self.on_cpu else torch.no_grad():
            return self.fast.hidden(tokens_T, positions_T, attention, self.tensors)


class OwnLayers:
    """The model's own layers around our attention; all tokens are one row."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.logits = _output_layer(model, compute_dtype(model), reordered=False)

    def __call__(self, tokens_T: Tensor, positions_T: Tensor, attention: Attention) -> Tensor:
        """As `Kernels`."""
        with using(self.model, attention):
            return own_states(self.model, tokens_T[None], positions_T[None])


@dataclass
class _Keeping:
    """Attention over packed prompts that keeps their keys and values [T, Hkv, D] by layer."""

    attention: Attention
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        self.keys[layer], self.values[layer] = key, value
        return self.attention.attend(layer, query, key, value, scale)


class SharedDecoder:
    """A decoder with shared prompts; only here can rows join while others run."""

    def __init__(self, model: PreTrainedModel, run: Kernels | OwnLayers) -> None:
        self.model = model
        self.run = run
        self.last_position = (getattr(model.config, "max_position_embeddings", None) or sys.maxsize) - 1
        self.room: BufferSizes | None = None
        self.fixed: FixedCache | None = None
        self.recorded = RecordedSteps()

    def reserve(self, room: BufferSizes) -> None:
        """Set the maximum sizes of all decodings that follow. Must be called only once.

        On a GPU our kernels then use buffers that never move, and record their steps.
        """
        if isinstance(self.run, Kernels) and not self.run.on_cpu:
            self.room = room

    def start(self, prompts_P: Sequence[Sequence[int]], group_size: int) -> Tensor:
        prefill, logits = self._prefill(prompts_P)
        if self.room is None:
            self.cache = RowCache(prefill, group_size)
        else:
            self.cache = self.fixed = self.fixed or FixedCache(prefill, self.room)
            self.fixed.clear()
            self.fixed.join(prefill, group_size)
        return logits.repeat_interleave(group_size, 0)

    def join(self, prompts_P: Sequence[Sequence[int]], group_size: int) -> Tensor:
        """Add rows after the running ones; returns logits [P·G, V] of their first tokens."""
        prefill, logits = self._prefill(prompts_P)
        self.cache.join(prefill, group_size)
        return logits.repeat_interleave(group_size, 0)

    def step(self, tokens_B: Tensor) -> Tensor:
        if self.cache.is_full:
            self.cache.grow()
        self.cache.length += 1
        if self.fixed is not None:
            return self.recorded(self._on_device, self.fixed.shape, tokens_B)
        return self._on_device(tokens_B)

    def keep(self, rows: Tensor) -> None:
        self.cache.keep(rows)

    def _on_device(self, tokens_B: Tensor) -> Tensor:
        """The device's part of a step; all its effects are in place."""
        self.cache.advance()
        hidden = self.run(tokens_B, self.cache.positions, self.cache)
        # A finished row that has not left yet may have reached the last position.
        self.cache.positions.add_(1).clamp_(max=self.last_position)
        return self.run.logits(hidden)

    def _prefill(self, prompts_P: Sequence[Sequence[int]]) -> tuple[Prefill, Tensor]:
        """The prompts' keys and values, and logits [P, V] of the token after each."""
        device, lengths = self.model.device, [len(prompt) for prompt in prompts_P]
        tokens = torch.tensor([token for prompt in prompts_P for token in prompt], device=device)
        positions = torch.cat([torch.arange(length) for length in lengths]).to(device)
        spans = [GroupSpan(sum(lengths[:i]), n, ()) for i, n in enumerate(lengths)]
        kept = _Keeping(attention_for(spans, self.model, compute_dtype(self.model), waste=0))
        hidden = self.run(tokens, positions, kept)
        ends = torch.tensor(lengths).cumsum(0).to(device, non_blocking=True) - 1
        return Prefill(kept.keys, kept.values, tuple(lengths)), self.run.logits(hidden[ends])


@dataclass
class CacheDecoder:
    model: PreTrainedModel

    def start(self, prompts_P: Sequence[Sequence[int]], group_size: int) -> Tensor:
        rows, mask = padded(prompts_P, self.model.device, side="left")
        self.cache = DynamicCache(config=self.model.config)
        out = self.model(
            input_ids=rows,
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp(min=0),
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.mask = mask
        self.keep(torch.arange(len(rows)).repeat_interleave(group_size))
        return out.logits[:, -1].repeat_interleave(group_size, 0)

    def step(self, tokens_B: Tensor) -> Tensor:
        self.mask = torch.nn.functional.pad(self.mask, (0, 1), value=1)
        out = self.model(
            input_ids=tokens_B[:, None],
            attention_mask=self.mask,
            position_ids=self.mask.sum(1, keepdim=True) - 1,
            past_key_values=self.cache,
            use_cache=True,
        )
        return out.logits[:, -1]

    def keep(self, rows: Tensor) -> None:
        rows = rows.to(self.mask.device)
        self.cache.reorder_cache(rows)  # linear attention has no other method that selects rows
        self.mask = self.mask[rows]


@dataclass
class PlainDecoder:
    model: PreTrainedModel

    def start(self, prompts_P: Sequence[Sequence[int]], group_size: int) -> Tensor:
        self.rows = [list(prompt) for prompt in prompts_P for _ in range(group_size)]
        return self._logits()

    def step(self, tokens_B: Tensor) -> Tensor:
        for row, token in zip(self.rows, tokens_B.tolist(), strict=True):
            row.append(token)
        return self._logits()

    def keep(self, rows: Tensor) -> None:
        self.rows = [self.rows[index] for index in rows.tolist()]

    def _logits(self) -> Tensor:
        rows, mask = padded(self.rows, self.model.device, side="right")
        logits = self.model(input_ids=rows, attention_mask=mask, use_cache=False).logits
        return logits[torch.arange(len(rows), device=rows.device), mask.sum(1) - 1]


def padded(
    rows: Sequence[Sequence[int]], device: torch.device, *, side: Literal["left", "right"]
) -> tuple[Tensor, Tensor]:
    """Token ids [B, T] with padding on one side, and their mask.

    The padding is token 0. A tokenizer's own padding token may have no embedding.
    """

    def grid(tensors: list[Tensor]) -> Tensor:
        return pad_sequence(tensors, batch_first=True, padding_side=side).to(device)

    tokens = [torch.tensor(row) for row in rows]
    return grid(tokens), grid([torch.ones_like(each) for each in tokens])
