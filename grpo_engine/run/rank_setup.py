"""One rank's side of a gang: join the others, and hold only a share of the weights where the job says so.

    with joined_ranks(config) as config:     nothing happens where the environment speaks of one rank
        …
    shard(policy, config)              FSDP2, in place; nothing where weights are replicated

`python -m grpo_engine` starts its ranks itself (`gang.py`); `torchrun` may do it as well.
Sharded, a rank holds its share of every layer and of the rest. Layers are made whole one at a time while they
train and all together while the torch sampler samples, because ranks need different numbers of tokens.
Left out: tensor parallelism, and loading models that do not fit one device.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from transformers import PreTrainedModel

from grpo_engine.config.job import RunConfig, Runtime, TrainingFree, hyperparameters_of
from grpo_engine.contract.errors import ConfigError
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Group, Prompt
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.rollout.sampler.base import AroundSampler, OnGroup, Sampler, Sampling

T = TypeVar("T")

COLLECTIVE_TIMEOUT = timedelta(minutes=20)
"""Longest wait of a rank for the others; then it ends, and the gang with it. A dead rank is seen at once."""

ROOT_FORWARD = "run_as_forward"
"""Method of a sharded model that calls a function with the root's weights made whole."""


@contextmanager
def joined_ranks(config: RunConfig) -> Iterator[RunConfig]:
    """Inside, this process is one of the ranks that the environment speaks of, its part of the machine."""
    world, runtime = int(os.environ.get("WORLD_SIZE", "1")), config.runtime
    if world == 1:
        yield config
        return
    if isinstance(config.method, TrainingFree):
        raise ConfigError("runtime.ranks: a training-free job trains no weights and runs as one process")
    if _uses_cuda(runtime):
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if _uses_cuda(runtime) else "gloo", timeout=COLLECTIVE_TIMEOUT
    )
    # At exit, and there in the reverse order: after vLLM, which ends groups of its own and needs this one.
    leaving = weakref.finalize(joined_ranks, _leave)
    try:
        yield config.model_copy(update={"runtime": _part_of_machine(runtime, world)})
        dist.barrier()  # none leaves while another one still needs it
    except BaseException:
        leaving.detach()  # the others may wait for this rank in a collective: it ends without asking them
        raise


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def agreed_by_ranks(should_stop: Callable[[], bool]) -> Callable[[], bool]:
    """Asked at the same step by all ranks, it says the same to all of them."""
    return lambda: Ranks.current().any(should_stop())


def _uses_cuda(runtime: Runtime) -> bool:
    return runtime.device != "cpu" and torch.cuda.is_available()


def _part_of_machine(runtime: Runtime, world: int) -> Runtime:
    """Threads and grading processes are divided over the ranks."""
    threads = runtime.num_threads or len(os.sched_getaffinity(0))
    return runtime.model_copy(
        update={
            "num_threads": max(1, threads // world),
            "grader_processes": max(1, runtime.grader_processes // world),
        }
    )


def shard(policy: Policy, config: RunConfig) -> None:
    """Share the policy's weights (and its reference's) out over the ranks, where the runtime asks for it.

    In place, as `fully_shard` itself does it: a sampler that holds the policy goes on with it.
    """
    if config.runtime.sharding != "fsdp" or Ranks.current().world == 1:
        return
    if getattr(hyperparameters_of(config.method), "self_distillation", None) is not None:
        raise ConfigError("runtime.sharding: fsdp does not go with self_distillation; use replicated")
    for model in (policy.model, policy.reference_model):
        if model is not None:
            _shard_model(model)
    policy.fast = None  # it reads weights without the layers' own forward, which makes them whole
    policy.__class__ = ShardedPolicy


def _shard_model(model: PreTrainedModel) -> None:
    """Each decoder layer on its own, all else with the root."""
    names = set(model._no_split_modules or ())
    for layer in [module for module in model.modules() if type(module).__name__ in names]:
        fully_shard(layer)
    fully_shard(model)
    # A loss that is a mean over the whole step already: the ranks' gradients are summed, not averaged.
    for module in _sharded_modules(model):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    setattr(model, ROOT_FORWARD, lambda function: function())
    register_fsdp_forward_method(model, ROOT_FORWARD)
    # While the adapter is on: whether a parameter is trained is remembered from the first time it is whole.
    with gathered_weights(model):
        pass


def _sharded_modules(model: torch.nn.Module) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


@contextmanager
def gathered_weights(model: torch.nn.Module) -> Iterator[None]:
    """Inside, every rank holds all weights and may compute as often as it likes; all ranks must enter."""
    modules = _sharded_modules(model)
    for module in modules:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module in modules:
            module.reshard()
            module.set_reshard_after_forward(module is not model, recurse=False)


def run_with_root_weights(model: PreTrainedModel, function: Callable[[], T]) -> T:
    """`function()` as if it were the root's forward: what it uses of the model is whole meanwhile."""
    result = cast(T, getattr(model, ROOT_FORWARD)(function))
    if not torch.is_grad_enabled():
        cast(FSDPModule, model).reshard()  # with gradients the backward pass does it
    return result


class ShardedPolicy(Policy):
    """A policy of which each rank holds a share; every rank must ask for the same passes."""

    def _logprobs(self, model: PreTrainedModel, *arguments: Any, **named: Any) -> tuple[Tensor, Tensor]:
        return run_with_root_weights(model, partial(super()._logprobs, model, *arguments, **named))


class GatheringSampler(AroundSampler):
    """Around a sampler that computes with the trained model: its weights are whole while it samples."""

    def __init__(self, inner: Sampler, model: torch.nn.Module) -> None:
        super().__init__(inner)
        self.model = model

    def generate(
        self,
        prompts_P: Sequence[Prompt],
        group_size: int,
        sampling: Sampling,
        on_group: OnGroup | None = None,
    ) -> list[Group]:
        with gathered_weights(self.model):
            return self.inner.generate(prompts_P, group_size, sampling, on_group)


def with_gathered_weights(sampler: Sampler, policy: Policy) -> Sampler:
    """The sampler; where it samples with sharded weights, inside a `GatheringSampler`."""
    is_sharded = isinstance(policy.model, FSDPModule)
    return GatheringSampler(sampler, policy.model) if is_sharded and sampler.shares_weights else sampler
