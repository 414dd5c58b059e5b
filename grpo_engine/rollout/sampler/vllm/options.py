"""vLLM's arguments for a job, and whether it can serve that job."""

import os
from pathlib import Path
from typing import Any

import torch

from grpo_engine.config.hyperparameters import VLLM_RANKS
from grpo_engine.config.job import Runtime
from grpo_engine.config.reinforcement import ReinforcementHyperparameters
from grpo_engine.contract.errors import ConfigError
from grpo_engine.models.device_memory import cached_heads
from grpo_engine.models.lora import largest_rank
from grpo_engine.models.policy import Policy
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.process.host_memory import usable_bytes
from grpo_engine.rollout.sampler.vllm.engine import vllm_environment

TEMPERATURES = (0.01, 2.0)
"""Range of temperatures; outside of it vLLM refuses, or samples at another temperature."""
CPU_BLOCK_TOKENS = 32
"""Smallest page of vLLM's cache on a CPU; prompts are shared in whole pages."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""File with the identity of a running machine."""
DTYPE_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def engine_arguments(policy: Policy, runtime: Runtime, context_tokens: int) -> dict[str, Any]:
    """Arguments of vLLM's engine; a prompt and its completion have at most `context_tokens`."""
    on_cpu = policy.device.type == "cpu"
    arguments: dict[str, Any] = {
        "model": policy.source.path,
        "revision": policy.source.revision,
        "tokenizer_revision": policy.source.revision,
        "trust_remote_code": False,
        "load_format": "safetensors",
        "dtype": DTYPE_NAMES[policy.compute_dtype],
        "max_model_len": context_tokens,
        "max_num_seqs": runtime.sample_budget * runtime.tensor_parallel,
        "enable_prefix_caching": True,
        # The correction needs the log-probabilities of the distribution from which tokens are drawn.
        "logprobs_mode": "processed_logprobs",
        # The model's own defaults (top_p, penalties) are not part of a job.
        "generation_config": "vllm",
        "enforce_eager": on_cpu,
        "enable_sleep_mode": not on_cpu,
        "gpu_memory_utilization": runtime.sampler_memory,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "seed": 0,
    }
    if on_cpu:
        share = int(runtime.sampler_memory * usable_bytes())
        needed = arguments["max_num_seqs"] * cache_bytes(policy, context_tokens, runtime.tensor_parallel)
        arguments |= {"block_size": CPU_BLOCK_TOKENS, "kv_cache_memory_bytes": min(needed, share)}
    if policy.peft_model is not None:
        rank = largest_rank(policy.peft_model)
        padded = next(size for size in VLLM_RANKS if size >= rank)
        arguments |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": padded}
    if Ranks.current().world > 1:
        # vLLM runs in the ranks themselves and must not start processes. With its own all-reduce, every rank
        # would have to see the GPUs of all.
        arguments |= {
            "distributed_executor_backend": "external_launcher",
            "tensor_parallel_size": runtime.tensor_parallel,
            "disable_custom_all_reduce": True,
        }
    return arguments


def refuse_uneven_groups(runtime: Runtime) -> None:
    """Raise ConfigError unless hosts have whole groups of `tensor_parallel` ranks; all ranks must call it."""
    size, ranks = runtime.tensor_parallel, Ranks.current()
    if size == 1:
        return
    local = int(os.environ.get("LOCAL_WORLD_SIZE") or ranks.world)
    places_R = ranks.gather((BOOT_ID.read_text(), local))
    uneven = next((local for _, local in places_R if local % size), None)
    if uneven is not None:
        raise ConfigError(
            f"runtime.tensor_parallel is {size}, but the number of ranks on a host is {uneven}",
            hint="Choose a divisor of the number of ranks on each host (resources.gpus / resources.hosts).",
        )
    if any(len(set(places_R[first : first + size])) > 1 for first in range(0, ranks.world, size)):
        raise ConfigError(
            f"runtime.tensor_parallel is {size}, but {size} consecutive ranks are on several hosts",
            hint="Set resources.hosts, so that consecutive ranks are on one host.",
        )


def cache_bytes(policy: Policy, num_tokens: int, num_shares: int = 1) -> int:
    """Bytes of one sequence's keys and values, in whole pages, on each of the ranks that share them."""
    config = policy.model.config
    heads, size = cached_heads(config)
    pages, own_heads = -(-num_tokens // CPU_BLOCK_TOKENS), -(-heads // num_shares)
    per_token = 2 * config.num_hidden_layers * own_heads * size * policy.compute_dtype.itemsize
    return pages * CPU_BLOCK_TOKENS * per_token


def why_unsupported(policy: Policy, hyperparameters: ReinforcementHyperparameters) -> str | None:
    """Why vLLM cannot sample this job; None: no reason is known."""
    lowest, highest = TEMPERATURES
    for name in ("temperature", "eval_temperature"):
        value = getattr(hyperparameters, name)
        if value and not lowest <= value <= highest:
            return f"{name} is {value}; vLLM supports {lowest} to {highest}, and 0 for greedy"
    architecture = policy.architecture
    with vllm_environment():
        from vllm import ModelRegistry
        from vllm.model_executor.models import supports_lora

        entry = ModelRegistry.models.get(architecture)
        if entry is None:
            return f"vLLM does not support {architecture}"
        try:
            model_class = entry.load_model_cls()
        except ImportError as error:
            return f"vLLM cannot load {architecture} here: {error}"
        if policy.peft_model is not None and not supports_lora(model_class):
            return f"vLLM does not support adapters for {architecture}"
    return None
