"""Three ways to run a model token by token over the groups of some prompts, fastest first.

`SharedDecoder` computes each prompt once for its group with our attention layouts. `CacheDecoder` goes
through the model's own forward and cache, for models that the layouts do not fit; it too computes each
prompt once, then repeats its cache. `PlainDecoder` keeps nothing and computes whole rows again: for models
without such a cache. `choose_decoder` takes the first that gives the model's own logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from grpo_engine.attention import DecodeLayout, PrefillLayout, using


class Decoder(Protocol):
    def start(self, prompts_P: Sequence[Sequence[int]], group_size: int) -> Tensor:
        """Run the prompts; logits [P·G, V] of each row's first token."""
        ...

    def step(self, tokens_B: Tensor) -> Tensor:
        """Append a token to each live row; logits [B, V] of the next."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Only these rows [B'] go on."""
        ...


class SharedDecoder:
    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model

    def start(self, prompts_P: Sequence[Sequence[int]], group_size: int) -> Tensor:
        lengths = [len(prompt) for prompt in prompts_P]
        device = self.model.device
        input_ids = torch.tensor([[token for prompt in prompts_P for token in prompt]], device=device)
        positions = torch.cat([torch.arange(length) for length in lengths])[None].to(device)
        ends = torch.tensor(lengths).cumsum(0) - 1
        prefill = PrefillLayout(lengths, device)
        with using(self.model, prefill):
            out = self.model(
                input_ids=input_ids, position_ids=positions, use_cache=False, logits_to_keep=ends.to(device)
            )
        self.layout = DecodeLayout(prefill, group_size)
        self.positions = torch.tensor(lengths, device=device).repeat_interleave(group_size)
        return out.logits[0].repeat_interleave(group_size, 0)

    def step(self, tokens_B: Tensor) -> Tensor:
        self.layout.advance()
        with using(self.model, self.layout):
            out = self.model(
                input_ids=tokens_B[:, None], position_ids=self.positions[:, None], use_cache=False
            )
        self.positions = self.positions + 1
        return out.logits[:, -1]

    def keep(self, rows: Tensor) -> None:
        self.layout.keep(rows)
        self.positions = self.positions[rows]


class CacheDecoder:
    def __init__(self, model: PreTrainedModel, pad_token_id: int) -> None:
        self.model = model
        self.pad_token_id = pad_token_id

    def start(self, prompts_P: Sequence[Sequence[int]], group_size: int) -> Tensor:
        width = max(len(prompt) for prompt in prompts_P)
        device = self.model.device
        rows = [[self.pad_token_id] * (width - len(prompt)) + list(prompt) for prompt in prompts_P]
        seen = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts_P]
        mask = torch.tensor(seen, device=device)
        self.cache = DynamicCache(config=self.model.config)
        out = self.model(
            input_ids=torch.tensor(rows, device=device),
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


class PlainDecoder:
    def __init__(self, model: PreTrainedModel, pad_token_id: int) -> None:
        self.model = model
        self.pad_token_id = pad_token_id

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
        width = max(len(row) for row in self.rows)
        device = self.model.device
        padded = [row + [self.pad_token_id] * (width - len(row)) for row in self.rows]
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in self.rows], device=device)
        logits = self.model(
            input_ids=torch.tensor(padded, device=device), attention_mask=mask, use_cache=False
        ).logits
        return logits[torch.arange(len(self.rows), device=device), mask.sum(1) - 1]


PROOF_PROMPTS = ((5, 9, 2, 7, 3), (4, 8))
PROOF_TOKENS = (6, 1, 3)


def choose_decoder(
    model: PreTrainedModel, pad_token_id: int, *, shares_prompts: bool, tolerance: float
) -> Callable[[], Decoder]:
    """The fastest decoder whose logits are the model's own on a few rows of unequal length."""
    faster: list[Callable[[], Decoder]] = [lambda: CacheDecoder(model, pad_token_id)]
    if shares_prompts:
        faster.insert(0, lambda: SharedDecoder(model))
    expected = _proof_logits(PlainDecoder(model, pad_token_id))
    for make in faster:
        try:
            found = _proof_logits(make())
        except (RuntimeError, AttributeError, TypeError, KeyError, ValueError):
            continue
        if float((found - expected).abs().max()) <= tolerance:
            return make
    return lambda: PlainDecoder(model, pad_token_id)


def _proof_logits(decoder: Decoder) -> Tensor:
    """Log-probabilities of every step of a short decoding of which one row leaves half-way."""
    with torch.no_grad():
        steps = [decoder.start(PROOF_PROMPTS, 2)]
        for position, token in enumerate(PROOF_TOKENS):
            steps.append(decoder.step(torch.full((len(steps[-1]),), token, device=steps[-1].device)))
            if position == 0:
                kept = torch.tensor([0, 2, 3], device=steps[-1].device)
                decoder.keep(kept)
                steps[-1] = steps[-1][kept]
    return torch.cat([logits.float().log_softmax(-1) for logits in steps])
