"""Attention for shared prompts, through the models' own layers or our kernels.

An `Attention` replaces masks and caches, so that a prompt is computed once for its whole group, in sampling
and in training. A transformers model calls `grpo_layout` (registered with transformers) for every layer; it
uses the attention of the innermost `with using(model, attention)`.

Left out: soft-capped scores and position biases. `policy.py` proves at load that a model gives the same
log-probabilities this way as through its own forward pass, and otherwise uses that.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed._composable import checkpoint
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel

from grpo_engine.objective.types import GroupSpan

NAME = "grpo_layout"


class Attention(Protocol):
    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """query [T, Hq, D], key [T, Hkv, D] and value [T, Hkv, Dv] of this call's tokens → [T, Hq · Dv]."""
        ...


class _Current(threading.local):
    """The attentions in use, per thread, because one policy may sample while another is trained."""

    def __init__(self) -> None:
        self.attentions: list[Attention] = []


_current = _Current()


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """transformers' interface: query [1, Hq, T, D], key and value [1, Hkv, T, D or Dv] → [1, T, Hq, Dv]."""
    names = {"sliding_window": "window", "s_aux": "sinks"}
    special = {name: kwargs[each] for each, name in names.items() if kwargs.get(each) is not None}
    scale = kwargs.get("scaling") or query.shape[-1] ** -0.5
    # autocast leaves rotated queries and keys in float32
    queries, keys, values = (states[0].transpose(0, 1).to(value.dtype) for states in (query, key, value))
    with torch.autocast(query.device.type, enabled=False):
        out = _current.attentions[-1].attend(module.layer_idx, queries, keys, values, scale, **special)
    return out.view(1, *queries.shape[:2], -1), None


AttentionInterface.register(NAME, _attention)


@contextmanager
def using(model: PreTrainedModel, attention: Attention) -> Iterator[None]:
    """Inside the block, the model's layers use this attention; its input must be one row."""
    before = model.config._attn_implementation
    model.config._attn_implementation = NAME
    _current.attentions.append(attention)
    try:
        yield
    finally:
        _current.attentions.pop()
        model.config._attn_implementation = before


def window_of(config: PreTrainedConfig) -> int | None:
    """Attention window of some layers, in tokens; None if all layers attend to every earlier token."""
    config = config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and "sliding_attention" not in kinds:
        return None
    return getattr(config, "sliding_window", None) or None


def recompute(layer: torch.nn.Module, model: PreTrainedModel) -> None:
    """Keep only the layer's input; recompute the layer in the backward pass with the current attention."""

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        attentions = _current.attentions
        return nullcontext(), using(model, attentions[-1]) if attentions else nullcontext()

    checkpoint(layer, context_fn=contexts)


class PackedLayout:
    """Attention in a row of groups without padding: a completion attends to its prompt and itself.

    Spans of similar size are computed together as a padded grid.
    """

    def __init__(self, spans: Sequence[GroupSpan], device: torch.device) -> None:
        self.spans = tuple(spans)
        self.blocks = blocks_of(spans, device)
        columns = torch.cat([block.columns for block in self.blocks])
        self.within: dict[int, list[Block]] = {}
        """Window size → the blocks with the mask of that window."""
        self.restore = torch.empty_like(columns)
        self.restore[columns] = torch.arange(len(columns), device=device)

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        *,
        window: int | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """query [T, Hq, D], key [T, Hkv, D] and value [T, Hkv, Dv] → [T, Hq · Dv].

        `window`: number of tokens that a query attends to, its own included; None: all. `sinks` [Hq]: the
        score of one more key, whose value is 0.
        """
        blocks = self.blocks
        if window is not None:
            if window not in self.within:
                self.within[window] = [block.within(window) for block in blocks]
            blocks = self.within[window]
        query, key, value = (states.transpose(0, 1) for states in (query, key, value))
        pieces = [block.attend(query, key, value, scale, sinks) for block in blocks]
        return torch.cat(pieces, dim=1).index_select(1, self.restore).transpose(0, 1).flatten(1)


@dataclass(frozen=True, slots=True)
class _Run:
    """Tokens that attend to their prompt and, causally, to themselves; a prompt only to itself."""

    prompt_start: int
    prompt_tokens: int
    start: int
    tokens: int

    @property
    def area(self) -> int:
        return self.tokens * (self.prompt_tokens + self.tokens)


def blocks_of(spans: Sequence[GroupSpan], device: torch.device, *, waste: int | None = None) -> list[Block]:
    """Blocks that are computed together: prompts of similar length, completions of similar length.

    `waste` 0: blocks have equal lengths only, so that nothing is padded and no result depends on other rows.
    """
    prompts = [_Run(span.start, 0, span.start, span.prompt_tokens) for span in spans]
    completions = [run for span in spans for run in _completions(span)]
    if waste is None:
        waste = WASTE.get(device.type, WASTE["cuda"])
    return [_block(runs, device) for each in (prompts, completions) for runs in _alike(each, waste)]


def _completions(span: GroupSpan) -> Iterator[_Run]:
    ends = itertools.accumulate(span.completion_tokens, initial=span.completions_start)
    for start, tokens in zip(ends, span.completion_tokens, strict=False):
        yield _Run(span.start, span.prompt_tokens, start, tokens)


WASTE = {"cpu": 2**14, "cuda": 2**20}
"""Number of padded products that cost as much as the overhead of one more block."""


def _alike(runs: Sequence[_Run], waste: int) -> list[list[_Run]]:
    """Groups of runs that share a grid; a run joins a grid if its padding costs less than another grid."""
    blocks: list[list[_Run]] = []
    longest = prompt = needed = 0
    for run in sorted(runs, key=lambda r: (r.prompt_tokens + r.tokens, r.tokens)):
        longest, prompt = max(longest, run.tokens), max(prompt, run.prompt_tokens)
        needed += run.area
        grid = (len(blocks[-1]) + 1 if blocks else 1) * longest * (prompt + longest)
        if not blocks or grid - needed > waste:
            blocks.append([])
            longest, prompt, needed = run.tokens, run.prompt_tokens, run.area
        blocks[-1].append(run)
    return blocks


@dataclass(frozen=True, slots=True)
class Block:
    """Queries and keys of the packed row that are computed together."""

    queries: Tensor
    """[R, Tq] columns; padding points at a real column, and its result is dropped."""
    keys: Tensor
    """[R, Tk] columns."""
    mask: Tensor | None
    """[R or 1, 1, Tq, Tk], True if a query attends to a key; None: causal."""
    inside: Tensor
    """[M] positions in the flattened [R, Tq] that are not padding."""
    columns: Tensor
    """[M] their columns in the packed row."""

    def within(self, window: int | None) -> Block:
        """The block with a mask in which a query attends to the last `window` of its keys; None: to all."""
        queries, keys = self.queries.shape[1], self.keys.shape[1]
        if window is not None and keys <= window:
            return self
        steps = torch.arange(keys, device=self.keys.device)
        distance = steps[keys - queries :, None] - steps
        near = (distance >= 0) & (distance < (window or keys))
        return replace(self, mask=near[None, None] if self.mask is None else self.mask & near)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float, sinks: Tensor | None = None
    ) -> Tensor:
        """query [Hq, T, D], key [Hkv, T, D] and value [Hkv, T, Dv] → [Hq, M, Dv]."""
        if sinks is not None:
            return self._attend_with(sinks, query, key, value, scale)
        if self.mask is not None and query.shape[0] != key.shape[0]:
            # Fast kernels support grouped heads or a mask, not both.
            shared = query.shape[0] // key.shape[0]
            key, value = key.repeat_interleave(shared, 0), value.repeat_interleave(shared, 0)
        out = scaled_dot_product_attention(
            _take(query, self.queries),
            _take(key, self.keys),
            _take(value, self.keys),
            attn_mask=self.mask,
            is_causal=self.mask is None,
            scale=scale,
            enable_gqa=query.shape[0] != key.shape[0],
        )
        return out.transpose(0, 1).flatten(1, 2).index_select(1, self.inside)

    def _attend_with(self, sinks: Tensor, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """`attend` with sinks, which torch's kernels do not support; the softmax is in float32."""
        shared = query.shape[0] // key.shape[0]
        queries = _take(query, self.queries)
        keys, values = (_take(each, self.keys).repeat_interleave(shared, 1) for each in (key, value))
        mask = self.within(None).mask if self.mask is None else self.mask
        assert mask is not None
        scores = (queries @ keys.transpose(2, 3) * scale).float().masked_fill(~mask, float("-inf"))
        weights = torch.cat([scores, sinks.float().view(-1, 1, 1).expand(*scores.shape[:3], 1)], 3).softmax(3)
        out = weights[..., :-1].to(value.dtype) @ values
        return out.transpose(0, 1).flatten(1, 2).index_select(1, self.inside)


def _take(states: Tensor, columns: Tensor) -> Tensor:
    """[H, T, D] at [R, W] columns → [R, H, W, D]."""
    taken = states.index_select(1, columns.flatten())
    return taken.unflatten(1, columns.shape).transpose(0, 1)


def _block(runs: Sequence[_Run], device: torch.device) -> Block:
    """Each run's keys are its prompt's, padded on the left, then its own, padded on the right."""
    own, inside = _grid(*_starts_and_lengths((run.start, run.tokens) for run in runs))
    own, inside = own.to(device, non_blocking=True), inside.to(device, non_blocking=True)
    width, longest = max(run.prompt_tokens for run in runs), own.shape[1]
    if width == 0:
        return Block(own, own, None, inside, own.flatten()[inside])
    starts, prompts = _starts_and_lengths((run.prompt_start, run.prompt_tokens) for run in runs)
    starts, prompts = starts.to(device, non_blocking=True), prompts.to(device, non_blocking=True)
    before = torch.arange(width, device=device) - (width - prompts)[:, None]
    keys = torch.cat([starts[:, None] + before.clamp(min=0), own], dim=1)
    steps = torch.arange(longest, device=device)
    mask = torch.arange(width + longest, device=device) <= (width + steps)[:, None]
    mask = mask[None, None]
    if any(run.prompt_tokens < width for run in runs):
        real = torch.cat([before >= 0, torch.ones_like(own, dtype=torch.bool)], dim=1)
        mask = mask & real[:, None, None]
    return Block(own, keys, mask, inside, own.flatten()[inside])


def _starts_and_lengths(pairs: Iterable[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """Starts [R] and lengths [R] of runs, on the CPU, so that reading a length does not wait for a device."""
    starts, lengths = torch.tensor(list(pairs)).unbind(1)
    return starts, lengths


def _grid(starts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Runs of columns [R] → grid [R, longest] of columns, and the flat positions that are not padding."""
    steps = torch.arange(int(lengths.max()))
    inside = steps < lengths[:, None]
    columns = torch.where(inside, starts[:, None] + steps, starts[:, None])
    return columns, inside.flatten().nonzero().squeeze(1)
