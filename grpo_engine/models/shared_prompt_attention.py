"""Attention for shared prompts: one interface of transformers, three layouts of ours.

A layout decides which tokens see which; it takes the place of masks and caches, so that a prompt is
computed once for its whole group, in sampling and in training. The model calls `grpo_layout` (registered
with transformers) for every layer; the layout in force is the innermost `with using(model, layout)`.

Left out: sliding windows, soft-capped scores and position biases. `policy.py` proves at load that a model
gives the same log-probabilities this way as through its own forward, and uses the plain way where not.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from grpo_engine.objective.types import GroupSpan

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


@dataclass(frozen=True, slots=True)
class _Run:
    """Tokens that see the prompt before them and, causally, themselves; a prompt sees only itself."""

    prompt_start: int
    prompt_tokens: int
    start: int
    tokens: int

    @property
    def area(self) -> int:
        return self.tokens * (self.prompt_tokens + self.tokens)


def blocks_of(spans: Sequence[GroupSpan], device: torch.device, *, waste: int | None = None) -> list[Block]:
    """What is attended together: prompts of similar length, completions of similar length.

    `waste` 0: only of the same length, so that nothing is padded and no result depends on other rows.
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
"""Products of a query with padding that cost as much as a block's further operations."""


def _alike(runs: Sequence[_Run], waste: int) -> list[list[_Run]]:
    """Runs that share a grid, as long as its padding costs less than another grid would."""
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


def _block(runs: Sequence[_Run], device: torch.device) -> Block:
    """Each run's keys are its prompt's, padded on the left, then its own, padded on the right."""
    own, inside = _grid(*_columns(((run.start, run.tokens) for run in runs), device))
    starts, prompts = _columns(((run.prompt_start, run.prompt_tokens) for run in runs), device)
    width, longest = int(prompts.max()), own.shape[1]
    if width == 0:
        return Block(own, own, None, inside, own.flatten()[inside])
    before = torch.arange(width, device=device) - (width - prompts)[:, None]
    keys = torch.cat([starts[:, None] + before.clamp(min=0), own], dim=1)
    steps = torch.arange(longest, device=device)
    mask = torch.arange(width + longest, device=device) <= (width + steps)[:, None]
    mask = mask[None, None]
    if int(prompts.min()) < width:
        real = torch.cat([before >= 0, torch.ones_like(own, dtype=torch.bool)], dim=1)
        mask = mask & real[:, None, None]
    return Block(own, keys, mask, inside, own.flatten()[inside])


def _columns(pairs: Iterable[tuple[int, int]], device: torch.device) -> tuple[Tensor, Tensor]:
    starts, lengths = torch.tensor(list(pairs), device=device).unbind(1)
    return starts, lengths


def _grid(starts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Runs of columns [R] → grid [R, longest] of columns, and the flat positions that are real."""
    steps = torch.arange(int(lengths.max()), device=starts.device)
    inside = steps < lengths[:, None]
    columns = torch.where(inside, starts[:, None] + steps, starts[:, None])
    return columns, inside.flatten().nonzero().squeeze(1)
