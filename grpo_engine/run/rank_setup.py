"""Joins this process to the other ranks, and shards the weights if the job asks for it.

    with joined_ranks(config) as config:     no effect with a single rank
        …
    shard(policy, config)              FSDP2, in place; no effect if weights are replicated

`python -m grpo_engine` starts its ranks itself (`rank_launcher.py`); `torchrun` works too.
A sharded rank holds a share of every parameter. Layers are gathered one at a time during training and all
together while the torch sampler samples, because ranks sample different numbers of tokens.
Left out: tensor parallelism, and loading models that do not fit one device.
"""

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
from grpo_engine.run.devices import choose_device

T = TypeVar("T")

COLLECTIVE_TIMEOUT = timedelta(minutes=20)
"""Longest wait of a rank for the others before the run fails. A dead rank is detected at once."""

ROOT_FORWARD = "run_as_forward"
"""Method of a sharded model that calls a function with the root's weights gathered."""


@contextmanager
def joined_ranks(config: RunConfig) -> Iterator[RunConfig]:
    """Join the ranks that the environment names; yields the config with this rank's part of the machine."""
    world, runtime = int(os.environ.get("WORLD_SIZE", "1")), config.runtime
    if world == 1:
        yield config
        return
    if isinstance(config.method, TrainingFree):
        raise ConfigError("runtime.ranks: a training-free job trains no weights and runs as one process")
    is_on_gpu = choose_device(runtime).type == "cuda"
    if is_on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("cpu:gloo,cuda:nccl" if is_on_gpu else "gloo", timeout=COLLECTIVE_TIMEOUT)
    # At exit, in reverse order: after vLLM, which destroys its own groups and needs this one.
    leaving = weakref.finalize(joined_ranks, _leave)
    try:
        yield config.model_copy(update={"runtime": _part_of_machine(runtime, world)})
        dist.barrier()  # no rank leaves while another one still needs it
    except BaseException:
        leaving.detach()  # do not wait: the others may be in a collective
        raise


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def agreed_by_ranks(should_stop: Callable[[], bool]) -> Callable[[], bool]:
    """`should_stop` with one result for all ranks, which must call it at the same step."""
    return lambda: any(Ranks.current().gather(should_stop()))


def _part_of_machine(runtime: Runtime, world: int) -> Runtime:
    """The runtime with threads and grading processes divided by the number of ranks."""
    threads = runtime.num_threads or len(os.sched_getaffinity(0))
    return runtime.model_copy(
        update={
            "num_threads": max(1, threads // world),
            "grader_processes": max(1, runtime.grader_processes // world),
        }
    )


def shard(policy: Policy, config: RunConfig) -> None:
    """Shard the policy's weights (and its reference's) over the ranks if `runtime.sharding` is `fsdp`.

    In place, as `fully_shard` does: samplers keep their reference to the policy.
    """
    if config.runtime.sharding != "fsdp" or Ranks.current().world == 1:
        return
    if getattr(hyperparameters_of(config.method), "self_distillation", None) is not None:
        raise ConfigError("runtime.sharding: fsdp does not support self_distillation; use replicated")
    if getattr(hyperparameters_of(config.method), "quantization", None) is not None:
        raise ConfigError("runtime.sharding: fsdp does not support quantization; use replicated")
    for model in (policy.model, policy.reference_model):
        if model is not None:
            _shard_model(model)
    policy.fast = None  # it bypasses the layers' forward, which gathers the weights
    policy.__class__ = ShardedPolicy


def _shard_model(model: PreTrainedModel) -> None:
    """Shard each decoder layer by itself and everything else with the root."""
    names = set(model._no_split_modules or ())
    for layer in [module for module in model.modules() if type(module).__name__ in names]:
        fully_shard(layer)
    fully_shard(model)
    # The loss is a mean over the whole step already, so gradients are summed, not averaged.
    for module in _sharded_modules(model):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    setattr(model, ROOT_FORWARD, lambda function: function())
    register_fsdp_forward_method(model, ROOT_FORWARD)
    # FSDP records which parameters are trained when it first gathers them: do it while the adapter is on.
    with gathered_weights(model):
        pass


def _sharded_modules(model: torch.nn.Module) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


@contextmanager
def gathered_weights(model: torch.nn.Module) -> Iterator[None]:
    """Inside, every rank holds all weights and computes independently; all ranks must enter."""
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
    """`function()` as if it were the root's forward, with the root's weights gathered."""
    result = cast(T, getattr(model, ROOT_FORWARD)(function))
    if not torch.is_grad_enabled():
        cast(FSDPModule, model).reshard()  # with gradients, the backward pass does it
    return result


class ShardedPolicy(Policy):
    """A policy of which each rank holds a share; all ranks must run the same passes."""

    def _logprobs(self, model: PreTrainedModel, *arguments: Any, **named: Any) -> tuple[Tensor, Tensor]:
        return run_with_root_weights(model, partial(super()._logprobs, model, *arguments, **named))


class GatheringSampler(AroundSampler):
    """Gathers the weights while a sampler computes with the trained model."""

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
    """The sampler, wrapped in a `GatheringSampler` if it samples with sharded weights."""
    is_sharded = isinstance(policy.model, FSDPModule)
    return GatheringSampler(sampler, policy.model) if is_sharded and sampler.shares_weights else sampler
