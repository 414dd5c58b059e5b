"""Ways to run a model token by token over the groups of some prompts, fastest first.

`SharedDecoder` computes and keeps each prompt once for its group with our attention, by our own kernels (the
Llama family) or through the model's own layers. `CacheDecoder` uses the model's own forward pass and cache,
for models that our attention does not support. `PlainDecoder` keeps nothing and recomputes whole rows, for
models without such a cache. `choose_decoder` takes the first one that reproduces the model's own logits.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, Protocol, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, PreTrainedModel

from grpo_engine.models.fast.attention import attention_for
from grpo_engine.models.fast.model import FastModel, reads_at_once
from grpo_engine.models.fast.packed import Packed, packs
from grpo_engine.models.fast.products import product
from grpo_engine.models.policy import PROOF_TOLERANCE, Policy
from grpo_engine.models.shared_prompt_attention import Attention, using
from grpo_engine.objective.types import GroupSpan
from grpo_engine.rollout.sampler.cache import Prefill, RowCache
from grpo_engine.rollout.sampler.graphs import RecordedStep


class Decoder(Protocol):
    def start(self, prompts_P: Sequence[Sequence[int]], group_size: int) -> Tensor:
        """Run the prompts; logits [P·G, V] of each row's first token."""
        ...

    def step(self, tokens_B: Tensor) -> Tensor:
        """Append a token to each row; logits [B, V] of the next."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows [B']."""
        ...


class Run(Protocol):
    logits: Callable[[Tensor], Tensor]
    """Hidden states [B, H] → [B, V]."""

    def __call__(self, tokens_T: Tensor, positions_T: Tensor, attention: Attention) -> Tensor:
        """Tokens [T], their positions [T] and their attention → hidden states [T, H]."""
        ...


LARGEST_COPY = 2**25
"""Bytes of the largest output layer that is copied for decoding, so that memory stays bounded."""


def _output_layer(model: PreTrainedModel, *, packed: bool) -> Callable[[Tensor], Tensor]:
    head = cast(Any, model.get_output_embeddings())
    if type(head) is not torch.nn.Linear:
        return cast(Callable[[Tensor], Tensor], head)
    if packed and packs(head.weight) and head.weight.nbytes <= LARGEST_COPY:
        layer = Packed.of(head.weight, head.bias, None, None)
        return lambda hidden: layer(hidden)[0]
    return lambda hidden: product(hidden, head.weight, head.bias)


class Kernels:
    """Our own kernels; the policy's tensors are read once, at the start of a decoding."""

    def __init__(self, fast: FastModel) -> None:
        self.fast = fast
        # A GPU replays recorded steps, so fewer calls gain nothing there, and the copy costs memory.
        self.on_cpu = reads_at_once(fast.base.embed_tokens.weight)
        self.tensors = fast.joined_tensors() if self.on_cpu else fast.tensors()
        self.logits = _output_layer(fast.model, packed=self.on_cpu)

    def __call__(self, tokens_T: Tensor, positions_T: Tensor, attention: Attention) -> Tensor:
        # On a CPU each operation's overhead counts; it is smaller without autograd.
        with torch.inference_mode(self.on_cpu):
            return self.fast.hidden(tokens_T, positions_T, attention, self.tensors)


class OwnLayers:
    """The model's own layers around our attention; all tokens are one row."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.logits = _output_layer(model, packed=False)

    def __call__(self, tokens_T: Tensor, positions_T: Tensor, attention: Attention) -> Tensor:
        with using(self.model, attention):
            out = self.model.base_model(
                input_ids=tokens_T[None], position_ids=positions_T[None], use_cache=False
            )
        return cast(Tensor, out.last_hidden_state[0])


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
    """The only decoder that rows can join while others run."""

    def __init__(self, model: PreTrainedModel, run: Run) -> None:
        self.model = model
        self.run = run
        self.last_position = (getattr(model.config, "max_position_embeddings", None) or sys.maxsize) - 1
        self.recorded: RecordedStep | None = None

    def start(self, prompts_P: Sequence[Sequence[int]], group_size: int) -> Tensor:
        prefill, logits = self._prefill(prompts_P)
        self.cache = RowCache(prefill, group_size)
        self.positions = self._first_positions(prefill, group_size)
        self.recorded = None
        return logits.repeat_interleave(group_size, 0)

    def join(self, prompts_P: Sequence[Sequence[int]], group_size: int) -> Tensor:
        """Further rows behind those that run; logits [P·G, V] of their first tokens."""
        prefill, logits = self._prefill(prompts_P)
        self.cache.join(prefill, group_size)
        self.positions = torch.cat([self.positions, self._first_positions(prefill, group_size)])
        self.recorded = None
        return logits.repeat_interleave(group_size, 0)

    def step(self, tokens_B: Tensor) -> Tensor:
        if self.cache.is_full:
            self.cache.grow()
            self.recorded = None
        self.cache.length += 1
        if not (tokens_B.is_cuda and isinstance(self.run, Kernels)):
            return self._on_device(tokens_B)
        self.recorded = self.recorded or RecordedStep(self._on_device)
        return self.recorded(tokens_B)

    def keep(self, rows: Tensor) -> None:
        self.cache.keep(rows)
        self.positions = self.positions[rows]
        self.recorded = None

    def _on_device(self, tokens_B: Tensor) -> Tensor:
        """A step without its bookkeeping, all effects in place."""
        self.cache.advance()
        hidden = self.run(tokens_B, self.positions, self.cache)
        # A finished row that is still here may have no further position.
        self.positions.add_(1).clamp_(max=self.last_position)
        return self.run.logits(hidden)

    def _prefill(self, prompts_P: Sequence[Sequence[int]]) -> tuple[Prefill, Tensor]:
        """The prompts' keys and values, and logits [P, V] of the token after each."""
        device, lengths = self.model.device, [len(prompt) for prompt in prompts_P]
        tokens = torch.tensor([token for prompt in prompts_P for token in prompt], device=device)
        positions = torch.cat([torch.arange(length) for length in lengths]).to(device)
        spans = [GroupSpan(sum(lengths[:i]), n, ()) for i, n in enumerate(lengths)]
        kept = _Keeping(attention_for(spans, device, self.model.dtype, waste=0))
        hidden = self.run(tokens, positions, kept)
        ends = torch.tensor(lengths, device=device).cumsum(0) - 1
        return Prefill(kept.keys, kept.values, tuple(lengths)), self.run.logits(hidden[ends])

    def _first_positions(self, prefill: Prefill, group_size: int) -> Tensor:
        return torch.tensor(prefill.lengths, device=self.model.device).repeat_interleave(group_size)


@dataclass
class CacheDecoder:
    model: PreTrainedModel
    pad_token_id: int

    def start(self, prompts_P: Sequence[Sequence[int]], group_size: int) -> Tensor:
        rows, mask = _padded(prompts_P, self.pad_token_id, self.model.device, side="left")
        self.cache = DynamicCache(config=self.model.config)
        out = self.model(
            input_ids=rows,
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp(min=0),
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.cache.batch_repeat_interleave(group_size)
        self.mask = mask.repeat_interleave(group_size, 0)
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
        self.cache.batch_select_indices(rows)
        self.mask = self.mask[rows]


@dataclass
class PlainDecoder:
    model: PreTrainedModel
    pad_token_id: int

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
        rows, mask = _padded(self.rows, self.pad_token_id, self.model.device, side="right")
        logits = self.model(input_ids=rows, attention_mask=mask, use_cache=False).logits
        return logits[torch.arange(len(rows), device=rows.device), mask.sum(1) - 1]


def _padded(
    rows: Sequence[Sequence[int]], pad_token_id: int, device: torch.device, *, side: Literal["left", "right"]
) -> tuple[Tensor, Tensor]:
    """Token ids [B, T] with padding on one side, and their mask."""

    def grid(tensors: list[Tensor], value: int) -> Tensor:
        padded = pad_sequence(tensors, batch_first=True, padding_value=value, padding_side=side)
        return padded.to(device)

    tokens = [torch.tensor(row) for row in rows]
    return grid(tokens, pad_token_id), grid([torch.ones_like(each) for each in tokens], 0)


PROOF_PROMPTS = ((5, 9, 2, 7, 3), (4, 8))
PROOF_TOKENS = (6, 1, 3)


def choose_decoder(policy: Policy, *, is_frozen: bool = False) -> Callable[[], Decoder]:
    """The fastest decoder that reproduces the model's own logits on a few rows of unequal length.

    If the policy `is_frozen`, its tensors are read once for all decodings.
    """
    model, pad, fast = policy.model, policy.pad_token_id, policy.fast
    faster: list[Callable[[], Decoder]] = [lambda: CacheDecoder(model, pad)]
    if policy.shares_prompts:
        faster.insert(0, lambda: SharedDecoder(model, OwnLayers(model)))
    if policy.shares_prompts and fast is not None:
        kernels = cache(lambda: Kernels(fast)) if is_frozen else lambda: Kernels(fast)
        faster.insert(0, lambda: SharedDecoder(model, kernels()))
    expected = _proof_logits(PlainDecoder(model, pad))
    for make in faster:
        try:
            found = _proof_logits(make())
        except (RuntimeError, AttributeError, TypeError, KeyError, ValueError):
            continue
        if float((found - expected).abs().max()) <= PROOF_TOLERANCE[policy.compute_dtype]:
            return make
    return lambda: PlainDecoder(model, pad)


def _proof_logits(decoder: Decoder) -> Tensor:
    """Log-probabilities of every step of a short decoding that one row leaves half-way."""
    with torch.no_grad():
        steps = [decoder.start(PROOF_PROMPTS, 2)]
        for position, token in enumerate(PROOF_TOKENS):
            steps.append(decoder.step(torch.full((len(steps[-1]),), token, device=steps[-1].device)))
            if position == 0:
                kept = torch.tensor([0, 2, 3], device=steps[-1].device)
                decoder.keep(kept)
                steps[-1] = steps[-1][kept]
    return torch.cat([logits.float().log_softmax(-1) for logits in steps])
