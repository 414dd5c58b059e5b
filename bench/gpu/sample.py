"""Sampler only: groups of completions of a given length, by torch or by vLLM.

Nothing ends a completion but its length, so the number of tokens is known; a prompt is random words.
"""

from __future__ import annotations

import random
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.gpu.child import Measure, settle
from bench.gpu.parts import Cell
from bench.gpu.train import policy_of
from bench.trl import work
from bench.trl.ours import config_of
from bench.trl.side import Spec
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Prompt
from grpo_engine.rollout.sampler.base import Sampler, Sampling
from grpo_engine.rollout.sampler.choice import open_sampler

WARM_UP_TOKENS = 8


def open_sampling(spec: Spec, cells: list[Cell]) -> Measure:
    """Model and sampler, made once for all cells: their load is no part of a figure."""
    policy, settings = policy_of(spec)
    policy.stop_set = frozenset()
    policy.stop_ids = policy.stop_ids[:0]
    context = max(cell.prompt_tokens + cell.length for cell in cells)
    folder = Path(tempfile.mkdtemp(dir=Path(spec.model).parent))
    sampler = open_sampler(config_of(spec).runtime, policy, settings, context, folder)
    sampler.load_policy(0)

    def measure(cell: Cell, until: float) -> dict[str, Any]:
        return sample(sampler, policy, spec, cell)

    return measure


def sample(sampler: Sampler, policy: Policy, spec: Spec, cell: Cell) -> dict[str, Any]:
    """A short generation to warm up, then the timed one, of other prompts: no cache knows them."""
    _generate(sampler, policy, cell, Sampling(max_tokens=WARM_UP_TOKENS, seed=spec.seed))
    settle()
    began = time.perf_counter()
    tokens = _generate(sampler, policy, cell, Sampling(max_tokens=cell.length, seed=spec.seed, step=1))
    settle()
    seconds = time.perf_counter() - began
    if tokens != cell.completion_tokens:
        raise RuntimeError(f"{tokens} tokens were sampled instead of {cell.completion_tokens}")
    sizes = replace(spec, prompts=cell.prompts, group_size=cell.group_size, prompt_tokens=cell.prompt_tokens)
    config = policy.model.config
    return {
        "seconds": seconds,
        "tokens": tokens,
        "tokens_per_second": tokens / seconds,
        "tokens_per_second_of_one": cell.length / seconds,
        "flops": work.decode_flops(config, sizes, tokens, cell.length),
        "bytes": decode_bytes(config, cell, policy.compute_dtype.itemsize),
        "sampler": type(sampler).__name__,
    }


def _generate(sampler: Sampler, policy: Policy, cell: Cell, sampling: Sampling) -> int:
    """Sampled tokens."""
    drawn = random.Random(f"{sampling.seed}/{sampling.step}")
    vocab = policy.model.config.vocab_size
    prompts = [
        Prompt(row, "", tuple(drawn.randrange(2, vocab) for _ in range(cell.prompt_tokens)), {})
        for row in range(cell.prompts)
    ]
    groups = sampler.generate(prompts, cell.group_size, sampling)
    return sum(completion.num_sampled for group in groups for completion in group.completions)


def decode_bytes(config: Any, cell: Cell, itemsize: int) -> float:
    """What decoding must read: at every step each weight once, and the keys and values of each prompt once
    for its group and of each completion so far."""
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * itemsize
    seen = cell.prompts * (cell.prompt_tokens + cell.group_size * cell.length / 2)
    return float(cell.length * (work.weights(config) * itemsize + per_token * seen))
