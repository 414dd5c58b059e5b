"""The cache of `cache.py` in buffers that never move, so that a recorded step stays valid (GPUs).

Rows use the first places of their buffers; prompts use any place. A step computes all rows, half of them, a
quarter and so on: the smallest part that holds all running ones. The same is true of the columns. Each of
these shapes is recorded once. The columns are a ring: after `tokens` steps the oldest one, which no running
row needs, is overwritten.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_engine.rollout.sampler.cache import HIDDEN, Prefill, PromptCache, RowCache, arranged, spread

FEWEST_ROWS = 8
FEWEST_COLUMNS = 256


@dataclass(frozen=True, slots=True)
class BufferSizes:
    """Sizes of the buffers: the maximum that a decoding needs at the same time."""

    rows: int
    group_size: int
    prompts: int
    prompt_tokens: int
    """Tokens of the longest prompt."""
    tokens: int
    """Tokens of the longest completion."""


def bucket(count: int, most: int, fewest: int) -> int:
    """The smallest of `most`, its half, its quarter and so on that is at least `count` and `fewest`."""
    while (half := -(-most // 2)) >= max(count, fewest):
        most = half
    return most


class FixedCache(RowCache):
    """Attributes with `all_` hold every place; those of `RowCache` are views of the places in use."""

    def __init__(self, prefill: Prefill, room: BufferSizes) -> None:
        """Starts empty; `prefill` gives the shapes of keys and values."""
        self.room = room
        like = prefill.keys[0]
        self.column = torch.zeros(1, dtype=torch.long, device=like.device)
        self.all_bias = like.new_full((room.rows, 1, room.tokens), HIDDEN)
        self.all_positions = torch.zeros(room.rows, dtype=torch.long, device=like.device)
        self.all_keys, self.all_values = (
            {n: each.new_zeros(room.rows, each.shape[1], room.tokens, each.shape[2]) for n, each in states}
            for states in (prefill.keys.items(), prefill.values.items())
        )
        self.prompts: FixedPrompts = FixedPrompts(prefill, room)
        self.clear()

    def clear(self) -> None:
        """Drop all rows."""
        self.num_rows = self.length = 0
        self.column.fill_(-1)
        self.prompts.prompt_of_row = []

    @property
    def shape(self) -> tuple[int, ...]:
        return self.bias.shape[0], self.bias.shape[2]

    @property
    def is_full(self) -> bool:
        return self.capacity <= self.length and self.capacity < self.room.tokens

    def grow(self) -> None:
        self._view()

    def advance(self) -> None:
        self.column.add_(1).remainder_(self.room.tokens)
        self.bias.index_fill_(2, self.column, 0.0)

    def keep(self, rows: Tensor) -> None:
        on_device = rows.to(self.column.device, non_blocking=True)
        for buffers in (self.all_keys, self.all_values):
            for states in buffers.values():
                _move_to_front(states, on_device)
        _move_to_front(self.all_bias, on_device)
        _move_to_front(self.all_positions, on_device)
        self.prompts.keep(rows)
        self.num_rows = len(rows)
        self._view()

    def join(self, prefill: Prefill, group_size: int) -> None:
        new = slice(self.num_rows, self.num_rows + len(prefill.lengths) * group_size)
        self.all_bias[new].fill_(HIDDEN)
        self.all_positions[new].copy_(prefill.positions(group_size))
        self.prompts.put(prefill, group_size)
        self.num_rows = new.stop
        self._view()

    def _view(self) -> None:
        """Set the views to the rows and columns that the next steps compute."""
        rows = bucket(self.num_rows, self.room.rows, FEWEST_ROWS)
        columns = bucket(self.length + 1, self.room.tokens, FEWEST_COLUMNS)
        self.bias = self.all_bias[:rows, :, :columns]
        self.positions = self.all_positions[:rows]
        self.keys = {layer: states[:rows, :, :columns] for layer, states in self.all_keys.items()}
        self.values = {layer: states[:rows, :, :columns] for layer, states in self.all_values.items()}
        self.prompts.prompts = self.prompts.all_prompts[:rows]
        self.prompts.places = self.prompts.all_places[:rows]


def _move_to_front(states: Tensor, rows: Tensor) -> None:
    states[: len(rows)].copy_(states.index_select(0, rows))


class FixedPrompts(PromptCache):
    def __init__(self, prefill: Prefill, room: BufferSizes) -> None:
        like, self.most = prefill.keys[0], room.group_size
        shape = room.prompts, like.shape[1], room.prompt_tokens, like.shape[2]
        self.keys = {layer: states.new_zeros(shape) for layer, states in prefill.keys.items()}
        self.values = {layer: states.new_zeros(shape) for layer, states in prefill.values.items()}
        self.bias = like.new_zeros(room.prompts, 1, room.prompt_tokens)
        self.heads = torch.arange(like.shape[1], device=like.device)
        self.members = self.heads.new_zeros(room.prompts, like.shape[1], self.most)
        self.all_prompts = self.heads.new_zeros(room.rows)
        self.all_places = self.heads.new_zeros(room.rows, like.shape[1])
        self.prompts, self.places = self.all_prompts, self.all_places
        self.prompt_of_row = []

    def put(self, prefill: Prefill, group_size: int) -> None:
        """Store prompts in places that no row uses, and add their rows after the others."""
        taken = set(self.prompt_of_row)
        free = [place for place in range(len(self.bias)) if place not in taken][: len(prefill.lengths)]
        places = torch.tensor(free).to(self.bias.device, non_blocking=True)
        columns, real = prefill.grid(self.bias.shape[2])
        for own, new in ((self.keys, prefill.keys), (self.values, prefill.values)):
            for layer, states in own.items():
                states.index_copy_(0, places, spread(new[layer], columns))
        bias = torch.zeros_like(real, dtype=self.bias.dtype).masked_fill_(~real, HIDDEN)
        self.bias.index_copy_(0, places, bias[:, None])
        self._set_members([*self.prompt_of_row, *(place for place in free for _ in range(group_size))])

    def keep(self, rows: Tensor) -> None:
        self._set_members([self.prompt_of_row[row] for row in rows.tolist()])

    def _set_members(self, prompt_of_row: Sequence[int]) -> None:
        """Arrange the rows by prompt. Results of free places and of rows beyond these are never read."""
        self.prompt_of_row = list(prompt_of_row)
        prompts, places, members = arranged(prompt_of_row, len(self.bias), self.most, self.heads)
        self.members.copy_(members)
        self.all_prompts[: len(prompts)].copy_(prompts)
        self.all_places[: len(places)].copy_(places)
