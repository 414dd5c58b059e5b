"""Attention for shared prompts: one interface of transformers, three layouts of ours.

A layout decides which tokens see which; it takes the place of masks and caches, so that a prompt is
computed once for its whole group, in sampling and in training. The model calls `grpo_layout` (registered
with transformers) for every layer; the layout in force is the innermost `with using(model, layout)`.

Left out: sliding windows, soft-capped scores and position biases. `policy.py` proves at load that a model
gives the same log-probabilities this way as through its own forward, and uses the plain way where not.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

NAME = "grpo_layout"


class Layout(Protocol):
    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """query [B, Hq, T, D], key and value [B, Hkv, T, D] of this call's tokens → [B, T, Hq, D]."""
        ...


class _InForce(threading.local):
    """Layouts by thread: one policy may sample while another is trained."""

    def __init__(self) -> None:
        self.layouts: list[Layout] = []


_in_force = _InForce()


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    scale = kwargs.get("scaling") or query.shape[-1] ** -0.5
    return _in_force.layouts[-1].attend(module.layer_idx, query, key, value, scale), None


AttentionInterface.register(NAME, _attention)


@contextmanager
def using(model: PreTrainedModel, layout: Layout) -> Iterator[None]:
    """The model's attention follows `layout` inside the block."""
    before = model.config._attn_implementation
    model.config._attn_implementation = NAME
    _in_force.layouts.append(layout)
    try:
        yield
    finally:
        _in_force.layouts.pop()
        model.config._attn_implementation = before


@dataclass(frozen=True, slots=True)
class GroupSpan:
    """Where a group lies in a packed row: its prompt, then its completions one after another."""

    start: int
    prompt_tokens: int
    completion_tokens: tuple[int, ...]

    @property
    def completions_start(self) -> int:
        return self.start + self.prompt_tokens

    @property
    def end(self) -> int:
        return self.completions_start + sum(self.completion_tokens)


class PackedLayout:
    """One row [1, T] of groups without padding: a completion sees its prompt and itself.

    Only inside attention are spans of like size laid out as a padded grid, one product for all of them.
    """

    def __init__(self, spans: Sequence[GroupSpan], device: torch.device) -> None:
        self.spans = tuple(spans)
        self.blocks = blocks_of(spans, device)
        columns = torch.cat([block.columns for block in self.blocks])
        self.restore = torch.empty_like(columns)
        self.restore[columns] = torch.arange(len(columns), device=device)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """[1, H, T, D] → [1, T, Hq, D]."""
        pieces = [block.attend(query[0], key[0], value[0], scale) for block in self.blocks]
        return torch.cat(pieces, dim=1).index_select(1, self.restore).transpose(0, 1).unsqueeze(0)


def blocks_of(spans: Sequence[GroupSpan], device: torch.device) -> list[Block]:
    """What is attended together: spans of like size, their prompts and then their completions."""
    blocks = []
    for bucket in _buckets(spans):
        blocks.append(_prompt_block(bucket, device))
        if any(span.completion_tokens for span in bucket):
            blocks.append(_completion_block(bucket, device))
    return blocks


MAX_PADDING = 1.5
"""Spans share a grid while its area is at most this many times what they need."""


def _buckets(spans: Sequence[GroupSpan]) -> list[list[GroupSpan]]:
    """Spans of like size together: first by prompt, then by longest completion."""
    buckets: list[list[GroupSpan]] = []
    for span in sorted(spans, key=lambda s: (s.prompt_tokens, max(s.completion_tokens, default=0))):
        if not (buckets and _padding([*buckets[-1], span]) <= MAX_PADDING):
            buckets.append([])
        buckets[-1].append(span)
    return buckets


def _padding(spans: Sequence[GroupSpan]) -> float:
    """Area of the common grid divided by the areas of each span's own grid."""

    def area(prompt: int, longest: int, rows: int) -> int:
        return prompt * prompt + rows * longest * (prompt + longest)

    own = sum(
        area(s.prompt_tokens, max(s.completion_tokens, default=0), len(s.completion_tokens)) for s in spans
    )
    longest = max(max(s.completion_tokens, default=0) for s in spans)
    prompt = max(s.prompt_tokens for s in spans)
    common = len(spans) * prompt * prompt
    common += sum(len(s.completion_tokens) for s in spans) * longest * (prompt + longest)
    return common / max(1, own)


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of queries and keys taken from the packed row, attended together, put back."""

    queries: Tensor
    """[R, Tq] columns; padding points at a real column and is thrown away."""
    keys: Tensor
    """[R, Tk] columns."""
    mask: Tensor | None
    """[R or 1, 1, Tq, Tk], True where a query sees a key; None: causal."""
    inside: Tensor
    """[M] positions in the flattened [R, Tq] that are real."""
    columns: Tensor
    """[M] their columns in the packed row."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """query [Hq, T, D], key and value [Hkv, T, D] → [Hq, M, D]."""
        if self.mask is not None and query.shape[0] != key.shape[0]:
            # Fast kernels take grouped heads or a mask, not both.
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


def _take(states: Tensor, columns: Tensor) -> Tensor:
    """[H, T, D] at [R, W] columns → [R, H, W, D]."""
    taken = states.index_select(1, columns.flatten())
    return taken.unflatten(1, columns.shape).transpose(0, 1)


def _prompt_block(spans: Sequence[GroupSpan], device: torch.device) -> Block:
    """Prompts, padded on the right: causal order hides the padding."""
    starts = torch.tensor([span.start for span in spans], device=device)
    lengths = torch.tensor([span.prompt_tokens for span in spans], device=device)
    columns, inside = _grid(starts, lengths)
    return Block(columns, columns, None, inside, columns.flatten()[inside])


def _completion_block(spans: Sequence[GroupSpan], device: torch.device) -> Block:
    """Completions: each one's keys are its prompt's, padded on the left, then its own."""
    sizes = [(span, count) for span in spans for count in span.completion_tokens]
    counts = torch.tensor([count for _, count in sizes], device=device)
    offsets = [
        span.completions_start + sum(span.completion_tokens[:index])
        for span in spans
        for index in range(len(span.completion_tokens))
    ]
    own, inside = _grid(torch.tensor(offsets, device=device), counts)
    prompts = torch.tensor([span.prompt_tokens for span, _ in sizes], device=device)
    width, longest = int(prompts.max()), own.shape[1]
    before = torch.arange(width, device=device) - (width - prompts)[:, None]
    starts = torch.tensor([span.start for span, _ in sizes], device=device)
    keys = torch.cat([starts[:, None] + before.clamp(min=0), own], dim=1)
    steps = torch.arange(longest, device=device)
    mask = torch.arange(width + longest, device=device) <= (width + steps)[:, None]
    mask = mask[None, None]
    if int(prompts.min()) < width:
        real = torch.cat([before >= 0, torch.ones_like(own, dtype=torch.bool)], dim=1)
        mask = mask & real[:, None, None]
    return Block(own, keys, mask, inside, own.flatten()[inside])


def _grid(starts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Runs of columns [R] → grid [R, longest] of columns, and the flat positions that are real."""
    steps = torch.arange(int(lengths.max()), device=starts.device)
    inside = steps < lengths[:, None]
    columns = torch.where(inside, starts[:, None] + steps, starts[:, None])
    return columns, inside.flatten().nonzero().squeeze(1)
