"""Keys and values of rows that are decoded together, laid out so that attention is a contiguous product.

Every row's next token goes to the same column, so prompts end together (padding on their left). A bias of −∞
hides padding and columns that are still free: products over the whole buffer are faster than over a part of
it. Nothing here depends on the number of tokens but the buffers, so that a step can be recorded as a graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from grpo_engine.models.fast.model import reads_at_once
from grpo_engine.models.fast.native import Shared
from grpo_engine.models.fast.operations import attend

HIDDEN = float("-inf")
GROWTH = {"cpu": 32, "cuda": 256}
"""Columns by which buffers grow: on a GPU each growth records a new graph."""
SHARED_FROM = 64
"""Tokens from which on a prompt is kept once for its group instead of once a row."""

Layers = Mapping[int, Tensor]


@dataclass(frozen=True, slots=True)
class Prefill:
    """Prompts that were just computed, packed in one row."""

    keys: Layers
    """[T, Hkv, D] by layer."""
    values: Layers
    lengths: tuple[int, ...]

    def grid(self, width: int) -> tuple[Tensor, Tensor]:
        """Columns [P, width] of the packed row, prompts to the right, and which of them are real."""
        device = self.keys[0].device
        lengths = torch.tensor(self.lengths, device=device)
        columns = torch.arange(width, device=device) - (width - lengths)[:, None]
        starts = lengths.cumsum(0) - lengths
        return columns.clamp(min=0) + starts[:, None], columns >= 0


class RowCache:
    """`attend` of one new token a row."""

    def __init__(self, prefill: Prefill, group_size: int, *, shared: bool, length: int = 0) -> None:
        """`length`: columns that other rows hold already; the new rows' first token goes behind them."""
        device = prefill.keys[0].device
        self.growth = GROWTH.get(device.type, GROWTH["cuda"])
        self.prompts = PromptCache(prefill, group_size) if shared else None
        self.length = length if shared else max(length, *prefill.lengths)
        self.column = torch.tensor([self.length - 1], device=device)
        capacity = self.length + self.growth
        rows = len(prefill.lengths) * group_size
        like = prefill.keys[0]
        self.bias = like.new_full((rows, 1, capacity), HIDDEN)
        if shared:
            shape = rows, like.shape[1], capacity, like.shape[2]
            self.keys = {layer: like.new_zeros(shape) for layer in prefill.keys}
            self.values = {layer: like.new_zeros(shape) for layer in prefill.keys}
            return
        columns, real = prefill.grid(self.length)
        self.bias[:, 0, : self.length].masked_fill_(real.repeat_interleave(group_size, 0), 0.0)
        columns = columns.repeat_interleave(group_size, 0)
        self.keys = {n: _spread(states, columns, capacity) for n, states in prefill.keys.items()}
        self.values = {n: _spread(states, columns, capacity) for n, states in prefill.values.items()}

    @property
    def capacity(self) -> int:
        return self.bias.shape[2]

    @property
    def is_full(self) -> bool:
        return self.length == self.capacity

    def grow(self, left: int = 0) -> None:
        """Room for further tokens; `left`: columns to put before the first."""
        right = max(self.growth, self.capacity // 4) if not left else 0
        for buffers in (self.keys, self.values):
            for layer, states in buffers.items():
                buffers[layer] = _widened(states, left, right)
        self.bias = pad(self.bias, (left, right), value=HIDDEN)
        self.length += left
        self.column += left

    def advance(self) -> None:
        """On the device: the next column is open. Call once before each step, `length` with it."""
        self.column += 1
        self.bias.index_fill_(2, self.column, 0.0)

    def keep(self, rows: Tensor) -> None:
        """Only these rows [B'] go on; the first columns, where none of them has anything, are given back."""
        self.bias = self.bias.index_select(0, rows)
        unused = int((self.bias[:, 0] > HIDDEN).any(0).int().argmax())
        for buffers in (self.keys, self.values):
            for layer, states in buffers.items():
                buffers[layer] = states[:, :, unused:].index_select(0, rows)
        self.bias = self.bias[:, :, unused:]
        self.length -= unused
        self.column -= unused
        if self.prompts is not None:
            self.prompts.keep(rows)

    def join(self, prefill: Prefill, group_size: int) -> None:
        """New rows beside those that run."""
        if self.prompts is None and (missing := max(prefill.lengths) - self.length) > 0:
            self.grow(left=missing)
        new = RowCache(prefill, group_size, shared=self.prompts is not None, length=self.length)
        while self.capacity < new.capacity:
            self.grow()
        spare = self.capacity - new.capacity
        for own, others in ((self.keys, new.keys), (self.values, new.values)):
            for layer, states in own.items():
                own[layer] = torch.cat([states, pad(others[layer], (0, 0, 0, spare))])
        self.bias = torch.cat([self.bias, pad(new.bias, (0, spare), value=HIDDEN)])
        if self.prompts is not None and new.prompts is not None:
            self.prompts.join(new.prompts)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """query [B, Hq, D], key and value [B, Hkv, D] → [B, Hq · D]."""
        shared = self.prompts.of(layer) if self.prompts is not None else None
        buffers = self.keys[layer], self.values[layer], self.bias
        return attend(
            (query, key, value),
            buffers,
            self.length,
            scale,
            shared,
            by_torch=lambda: self._attend(layer, query, key, value, scale),
        )

    def _attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """The same by torch's operations."""
        keys, values = self.keys[layer], self.values[layer]
        self._write(keys, key)
        self._write(values, value)
        batch, heads, dim = query.shape
        queries = (query * scale).view(batch * key.shape[1], -1, dim)
        scores = torch.bmm(queries, keys.flatten(0, 1).transpose(1, 2)).view(batch, heads, -1)
        scores += self.bias
        if self.prompts is None:
            weights = scores.softmax(-1).view(len(queries), -1, scores.shape[2])
            return torch.bmm(weights, values.flatten(0, 1)).view(batch, -1)
        before = self.prompts.scores(layer, queries.view(batch, -1))
        weights = torch.cat([before, scores], 2).softmax(-1)
        of_prompt, own = weights.split([before.shape[2], scores.shape[2]], 2)
        made = torch.bmm(own.reshape(len(queries), -1, scores.shape[2]), values.flatten(0, 1))
        return made.view(batch, -1) + self.prompts.mixed(layer, of_prompt)

    def _write(self, buffer: Tensor, states: Tensor) -> None:
        """[B, Hkv, D] into the open column; a recorded step must find it on the device."""
        if reads_at_once(buffer):
            buffer.select(2, self.length - 1).copy_(states)
        else:
            buffer.index_copy_(2, self.column, states.unsqueeze(2))


def _widened(states: Tensor, left: int, right: int) -> Tensor:
    """Zero columns around [B, Hkv, C, D]; `pad` would write the whole twice."""
    rows, heads, columns, dim = states.shape
    made = states.new_empty(rows, heads, left + columns + right, dim)
    made[:, :, :left] = 0
    made[:, :, left : left + columns] = states
    made[:, :, left + columns :] = 0
    return made


def _spread(states: Tensor, columns: Tensor, capacity: int) -> Tensor:
    """[T, Hkv, D] at [B, W] → [B, Hkv, capacity, D]."""
    rows, width = columns.shape
    buffer = states.new_zeros(rows, states.shape[1], capacity, states.shape[2])
    buffer[:, :, :width] = states[columns].transpose(1, 2)
    return buffer


class PromptCache:
    """Prompts' keys and values, once for all rows of a group."""

    def __init__(self, prefill: Prefill, group_size: int) -> None:
        width = max(prefill.lengths)
        columns, real = prefill.grid(width)
        self.bias = prefill.keys[0].new_zeros(len(columns), 1, width).masked_fill_(~real[:, None], HIDDEN)
        self.keys = {n: _spread(states, columns, width) for n, states in prefill.keys.items()}
        self.values = {n: _spread(states, columns, width) for n, states in prefill.values.items()}
        self._set_members([p for p in range(len(columns)) for _ in range(group_size)])

    def _set_members(self, prompt_of_row: Sequence[int]) -> None:
        """Rows by prompt as a grid [P, most rows of one]; its free places point at row 0."""
        self.prompt_of_row = list(prompt_of_row)
        members: list[list[int]] = [[] for _ in range(len(self.bias))]
        slots = []
        for row, prompt in enumerate(self.prompt_of_row):
            slots.append((prompt, len(members[prompt])))
            members[prompt].append(row)
        most = max(map(len, members))
        device = self.bias.device
        grid = [rows + [0] * (most - len(rows)) for rows in members]
        self.grid = torch.tensor(grid, device=device).flatten()
        self.slots = torch.tensor([prompt * most + place for prompt, place in slots], device=device)
        self.prompts = torch.tensor(self.prompt_of_row, device=device)

    def keep(self, rows: Tensor) -> None:
        """Only these rows go on; prompts without a row leave."""
        kept = [self.prompt_of_row[row] for row in rows.tolist()]
        live = sorted(set(kept))
        chosen = torch.tensor(live, device=self.bias.device)
        if len(live) < len(self.bias):
            for buffers in (self.keys, self.values):
                for layer, states in buffers.items():
                    buffers[layer] = states.index_select(0, chosen)
            self.bias = self.bias.index_select(0, chosen)
        places = {prompt: place for place, prompt in enumerate(live)}
        self._set_members([places[prompt] for prompt in kept])

    def join(self, other: PromptCache) -> None:
        width = max(self.bias.shape[2], other.bias.shape[2])
        first = len(self.bias)
        for each in (self, other):
            each._widen(width)
        for own, others in ((self.keys, other.keys), (self.values, other.values)):
            for layer, states in own.items():
                own[layer] = torch.cat([states, others[layer]])
        self.bias = torch.cat([self.bias, other.bias])
        self._set_members([*self.prompt_of_row, *(first + prompt for prompt in other.prompt_of_row)])

    def _widen(self, width: int) -> None:
        missing = width - self.bias.shape[2]
        if missing:
            for buffers in (self.keys, self.values):
                for layer, states in buffers.items():
                    buffers[layer] = pad(states, (0, 0, missing, 0))
            self.bias = pad(self.bias, (missing, 0), value=HIDDEN)

    def of(self, layer: int) -> Shared:
        return self.keys[layer], self.values[layer], self.bias, self.prompts

    def scores(self, layer: int, queries: Tensor) -> Tensor:
        """Scaled queries [B, Hq · D] → [B, Hq, W]."""
        keys = self.keys[layer]
        prompts, heads, width, dim = keys.shape
        made = torch.bmm(self._by_prompt(queries, heads, dim), keys.flatten(0, 1).transpose(1, 2))
        made.view(prompts, -1, width).add_(self.bias)
        return self._by_row(made, heads).view(len(queries), -1, width)

    def mixed(self, layer: int, weights: Tensor) -> Tensor:
        """Weights [B, Hq, W] → what they take of the values [B, Hq · D]."""
        values = self.values[layer]
        heads, width = values.shape[1:3]
        made = torch.bmm(self._by_prompt(weights.flatten(1), heads, width), values.flatten(0, 1))
        return self._by_row(made, heads)

    def _by_prompt(self, rows: Tensor, heads: int, last: int) -> Tensor:
        """[B, Hq · L] → [P · Hkv, most · shared, L]."""
        grid = rows.index_select(0, self.grid).view(
            len(self.bias), -1, heads, rows.shape[1] // heads // last, last
        )
        return grid.transpose(1, 2).reshape(len(self.bias) * heads, -1, last)

    def _by_row(self, states: Tensor, heads: int) -> Tensor:
        """The inverse: [P · Hkv, most · shared, L] → [B, Hq · L]."""
        prompts, last = len(self.bias), states.shape[2]
        most = len(self.grid) // prompts
        grid = states.view(prompts, heads, most, -1, last).transpose(1, 2)
        return grid.reshape(prompts * most, -1).index_select(0, self.slots)
