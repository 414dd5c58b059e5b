"""Attention over packed groups on a GPU: torch's variable-length kernel, without masks and without padding.

One call computes all prompts and completions. Each is a sequence of queries that ends with its keys; a
completion has the keys of its prompt, followed by its own. The layout is built on the host and copied once
per micro-batch.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from inspect import signature
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import pad

from grpo_engine.models.shared_prompt_attention import PackedLayout
from grpo_engine.objective.types import GroupSpan

HEAD_MULTIPLE, LARGEST_HEAD = 8, 256
"""Head sizes that the kernel supports."""
GROUPED: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in signature(varlen_attn).parameters else {}
"""Several heads of queries may share a head of keys; torch 2.11 always allows it and has no such option."""


def supports(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether the kernel supports this: half precision on a GPU of the Ampere generation or later."""
    return (
        device.type == "cuda"
        and dtype in (torch.bfloat16, torch.float16)
        and head_dim % HEAD_MULTIPLE == 0
        and head_dim <= LARGEST_HEAD
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )


class VarlenLayout:
    """Attention in a row of groups: a completion attends to its prompt and, causally, to itself."""

    def __init__(self, spans: Sequence[GroupSpan], device: torch.device) -> None:
        """`spans` cover the row without gaps."""
        self.spans, self.device = tuple(spans), device
        runs = [run for span in spans for run in _runs(span)]
        self.longest_queries = max(len(own) for _, own in runs)
        self.longest_keys = max(len(before) + len(own) for before, own in runs)
        columns = [torch.arange(each.start, each.stop) for run in runs for each in run]
        queries = accumulate((len(own) for _, own in runs), initial=0)
        keys = accumulate((len(before) + len(own) for before, own in runs), initial=0)
        self.columns = torch.cat(columns).to(device)
        self.query_ends = torch.tensor(list(queries), dtype=torch.int32).to(device)
        self.key_ends = torch.tensor(list(keys), dtype=torch.int32).to(device)

    @cached_property
    def with_masks(self) -> PackedLayout:
        return PackedLayout(self.spans, self.device)

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
        """query [T, Hq, D], key [T, Hkv, D] and value [T, Hkv, Dv] → [T, Hq · Dv]; no sinks in the kernel."""
        if sinks is not None:
            return self.with_masks.attend(layer, query, key, value, scale, window=window, sinks=sinks)
        size = value.shape[2]
        if size < query.shape[2]:  # the kernel requires values of the keys' size
            value = pad(value, (0, query.shape[2] - size))
        out = varlen_attn(
            query,
            key.index_select(0, self.columns),
            value.index_select(0, self.columns),
            self.query_ends,
            self.key_ends,
            self.longest_queries,
            self.longest_keys,
            scale=scale,
            window_size=(-1 if window is None else window - 1, 0),  # keys before and after
            **GROUPED,
        )
        assert isinstance(out, Tensor)
        return out[..., :size].flatten(1)


def _runs(span: GroupSpan) -> Iterator[tuple[range, range]]:
    """For the prompt and each completion: the columns before it that it attends to, and its own."""
    prompt = range(span.start, span.completions_start)
    yield range(0), prompt
    first = span.completions_start
    for length in span.completion_tokens:
        yield prompt, range(first, first + length)
        first += length
