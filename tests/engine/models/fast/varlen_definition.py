"""The definition of torch's variable-length attention, for processors without its kernel."""

from collections.abc import Callable

import torch
from torch import Tensor


def lengths_of(ends: Tensor) -> list[int]:
    found: list[int] = ends.diff().tolist()
    return found


def varlen_by_definition(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_ends: Tensor,
    key_ends: Tensor,
    longest_queries: int,
    longest_keys: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
    read: Callable[[Tensor], list[int]] = lengths_of,
) -> Tensor:
    """Sequence i has queries [query_ends[i]:query_ends[i + 1]], aligned with the end of its keys."""
    before, after = window_size
    assert after == 0
    assert query.shape[2] == key.shape[2] == value.shape[2]
    assert enable_gqa or query.shape[1] == key.shape[1]
    queries, keys = read(query_ends), read(key_ends)
    assert [max(queries), max(keys)] == [longest_queries, longest_keys]
    shared = query.shape[1] // key.shape[1]
    wide = (states.repeat_interleave(shared, 1, output_size=query.shape[1]) for states in (key, value))
    split = (states.split(keys) for states in wide)
    return torch.cat(
        [_causal(*states, scale, before) for states in zip(query.split(queries), *split, strict=True)]
    )


def _causal(query: Tensor, key: Tensor, value: Tensor, scale: float, before: int) -> Tensor:
    scores = torch.einsum("qhd,khd->hqk", query, key) * scale
    ones = torch.ones(scores.shape[1:], dtype=torch.bool, device=query.device)
    last = len(key) - len(query)
    seen = ones.tril(last) if before < 0 else ones.tril(last).triu(last - before)
    scores = scores.masked_fill(~seen, -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value)
