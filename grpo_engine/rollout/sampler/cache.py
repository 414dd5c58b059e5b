"""Keys and values of rows that are decoded together, laid out so that attention is a contiguous product.

A group's prompt is kept once. Every row's next token goes to the same column. A bias of −∞ hides padding and
free columns, because products over the whole buffer are faster than over a part of it. Buffers grow and
shrink with their rows; `fixed_cache.py` is the same cache with buffers that never move.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from grpo_engine.models.fast import native
from grpo_engine.models.fast.model import reads_at_once
from grpo_engine.models.fast.operations import scores_of

HIDDEN = float("-inf")
GROWTH = {"cpu": 32, "cuda": 256}
"""Columns that buffers grow by."""

Layers = Mapping[int, Tensor]


@dataclass(frozen=True, slots=True)
class Prefill:
    """Newly computed prompts, packed in one row."""

    keys: Layers
    """One tensor [T, Hkv, D] per layer; values may have another size than keys."""
    values: Layers
    lengths: tuple[int, ...]

    def grid(self, width: int) -> tuple[Tensor, Tensor]:
        """Columns [P, width] of the packed row, right-aligned, and which of them are not padding."""
        device = self.keys[0].device
        lengths = self._lengths()
        columns = torch.arange(width, device=device) - (width - lengths)[:, None]
        starts = lengths.cumsum(0) - lengths
        return columns.clamp(min=0) + starts[:, None], columns >= 0

    def positions(self, group_size: int) -> Tensor:
        """[P·G] of each row's first token."""
        return self._lengths().repeat_interleave(group_size, output_size=len(self.lengths) * group_size)

    def _lengths(self) -> Tensor:
        return torch.tensor(self.lengths).to(self.keys[0].device, non_blocking=True)


class RowCache:
    """Attention of one new token per row to its prompt and to the row's earlier tokens."""

    def __init__(self, prefill: Prefill, group_size: int, *, length: int = 0) -> None:
        """`length`: number of columns that other rows already use; the new rows start after them."""
        like = prefill.keys[0]
        self.growth = GROWTH.get(like.device.type, GROWTH["cuda"])
        self.prompts = PromptCache(prefill, group_size)
        self.length = length
        self.column = torch.tensor([length - 1], device=like.device)
        rows, capacity = len(prefill.lengths) * group_size, length + self.growth
        self.bias = like.new_full((rows, 1, capacity), HIDDEN)
        self.keys, self.values = (
            {n: each.new_zeros(rows, each.shape[1], capacity, each.shape[2]) for n, each in states}
            for states in (prefill.keys.items(), prefill.values.items())
        )
        self.positions = prefill.positions(group_size)
        """[B] of each row's next token."""

    @property
    def capacity(self) -> int:
        return self.bias.shape[2]

    @property
    def is_full(self) -> bool:
        return self.length == self.capacity

    def grow(self) -> None:
        """Add columns for further tokens."""
        self._widen(max(self.growth, self.capacity // 4))

    def advance(self) -> None:
        """Open the next column, on the device. Must be called before each step; the caller updates
        `length`."""
        self.column += 1
        self.bias.index_fill_(2, self.column, 0.0)

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows [B'], and drop the first columns that none of them uses."""
        self.prompts.keep(rows)
        rows = rows.to(self.bias.device)
        self.positions = self.positions.index_select(0, rows)
        self.bias = self.bias.index_select(0, rows)
        unused = int((self.bias[:, 0] > HIDDEN).any(0).int().argmax())
        for buffers in (self.keys, self.values):
            for layer, states in buffers.items():
                buffers[layer] = states[:, :, unused:].index_select(0, rows)
        self.bias = self.bias[:, :, unused:]
        self.length -= unused
        self.column -= unused

    def join(self, prefill: Prefill, group_size: int) -> None:
        new = RowCache(prefill, group_size, length=self.length)
        capacity = max(self.capacity, new.capacity)
        for each in (self, new):
            each._widen(capacity - each.capacity)
        for own, others in ((self.keys, new.keys), (self.values, new.values)):
            for layer, states in own.items():
                own[layer] = torch.cat([states, others[layer]])
        self.bias = torch.cat([self.bias, new.bias])
        self.positions = torch.cat([self.positions, new.positions])
        self.prompts.join(new.prompts)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """query [B, Hq, D], key [B, Hkv, D] and value [B, Hkv, Dv] → [B, Hq · Dv]."""
        keys, values, prompts = self.keys[layer], self.values[layer], self.prompts
        states, shared = (query, key, value), prompts.of(layer)
        if native.takes_heads(states, shared):
            return native.attend(states, (keys, values, self.bias), self.length, scale, shared)
        self._write(keys, key)
        self._write(values, value)
        queries = (query * scale).view(*key.shape[:2], -1, query.shape[2])
        own = scores_of(queries.flatten(0, 1), keys.flatten(0, 1)).view(*queries.shape[:3], -1)
        own += self.bias[:, :, None]
        before = prompts.in_rows(prompts.scores(layer, queries))
        weights = torch.cat([before, own], 3).softmax(-1).to(values.dtype)
        of_prompt, own = weights.split([before.shape[3], own.shape[3]], 3)
        made = torch.bmm(own.flatten(0, 1), values.flatten(0, 1))
        return made.view(len(query), -1) + prompts.in_rows(prompts.mixed(layer, of_prompt)).flatten(1)

    def _widen(self, columns: int) -> None:
        if columns:
            for buffers in (self.keys, self.values):
                for layer, states in buffers.items():
                    buffers[layer] = pad(states, (0, 0, 0, columns))
            self.bias = pad(self.bias, (0, columns), value=HIDDEN)

    def _write(self, buffer: Tensor, states: Tensor) -> None:
        """Write [B, Hkv, D] into the open column. A recorded step reads its number on the device."""
        if reads_at_once(buffer):
            buffer.select(2, self.length - 1).copy_(states)
        else:
            buffer.index_copy_(2, self.column, states.unsqueeze(2))


def spread(states: Tensor, columns: Tensor) -> Tensor:
    """[T, Hkv, D] at columns [P, W] → [P, Hkv, W, D], contiguous."""
    return states[columns].transpose(1, 2).contiguous()


def arranged(
    prompt_of_row: Sequence[int], prompts: int, most: int, heads: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Arrange rows by prompt, at most `most` for each. `heads`: the numbers [Hkv] of the heads.

    Returns each row's prompt [B], its place [B, Hkv] among all prompts' heads and rows, and the row and head
    at each place [P, Hkv, most]; free places hold row 0.
    """
    grid, columns = [[0] * most for _ in range(prompts)], []
    used = [0] * prompts
    for row, prompt in enumerate(prompt_of_row):
        columns.append(used[prompt])
        grid[prompt][used[prompt]] = row
        used[prompt] += 1
    rows_PM, prompt_B, column_B = (
        torch.tensor(each).to(heads.device, non_blocking=True) for each in (grid, prompt_of_row, columns)
    )
    places = (prompt_B[:, None] * len(heads) + heads) * most + column_B[:, None]
    return prompt_B, places, rows_PM[:, None] * len(heads) + heads[:, None]


class PromptCache:
    """The prompts' keys and values, once for all rows of a group."""

    def __init__(self, prefill: Prefill, group_size: int) -> None:
        width = max(prefill.lengths)
        columns, real = prefill.grid(width)
        self.bias = prefill.keys[0].new_zeros(len(columns), 1, width).masked_fill_(~real[:, None], HIDDEN)
        self.keys = {n: spread(states, columns) for n, states in prefill.keys.items()}
        self.values = {n: spread(states, columns) for n, states in prefill.values.items()}
        self.heads = torch.arange(self.keys[0].shape[1], device=columns.device)
        self._set_members([p for p in range(len(columns)) for _ in range(group_size)])

    def _set_members(self, prompt_of_row: Sequence[int]) -> None:
        """Arrange the rows by prompt."""
        self.prompt_of_row = list(prompt_of_row)
        most = max(Counter(prompt_of_row).values())
        self.prompts, self.places, self.members = arranged(prompt_of_row, len(self.bias), most, self.heads)

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows, and the prompts that have one of them."""
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

    def of(self, layer: int) -> native.Shared:
        return self.keys[layer], self.values[layer], self.bias, self.prompts

    def scores(self, layer: int, queries: Tensor) -> Tensor:
        """Scaled queries [B, Hkv, shared, D] → [P, Hkv, most, shared, W]."""
        by_prompt = self.by_prompt(queries)
        made = scores_of(by_prompt.flatten(2, 3).flatten(0, 1), self.keys[layer].flatten(0, 1))
        return made.view(*by_prompt.shape[:4], -1).add_(self.bias[:, :, None, None])

    def mixed(self, layer: int, weights: Tensor) -> Tensor:
        """Weights [B, Hkv, shared, W] → weighted sums of the values [P, Hkv, most, shared, Dv]."""
        by_prompt = self.by_prompt(weights)
        made = torch.bmm(by_prompt.flatten(2, 3).flatten(0, 1), self.values[layer].flatten(0, 1))
        return made.view(*by_prompt.shape[:4], -1)

    def by_prompt(self, rows: Tensor) -> Tensor:
        """[B, Hkv, shared, L] → [P, Hkv, most, shared, L], contiguous."""
        return rows.flatten(0, 1)[self.members]

    def in_rows(self, states: Tensor) -> Tensor:
        """The inverse: [P, Hkv, most, shared, L] → [B, Hkv, shared, L]."""
        return states.flatten(0, 2)[self.places]
