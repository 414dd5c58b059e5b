"""Joins this process to the other ranks, and opens the policy that they train together.

    with joined_ranks(config) as config:     no effect with a single rank
        policy = open_policy(config, device, dtype)     sharded by FSDP2 if `runtime.sharding` is `fsdp`

Each rank is a process that was started with torchrun's variables, by the worker or by torchrun itself.
A sharded rank holds a share of every parameter. The first rank reads the weights into its host's memory and
broadcasts them layer by layer. Layers are gathered one at a time during training and all together while the
torch sampler samples, because ranks sample different numbers of tokens.
Left out: tensor parallelism.
"""

import copy
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.nn import Parameter
from transformers import PreTrainedModel

from grpo_engine.config.job import Hyperparameters, RunConfig, Runtime, TrainingFree
from grpo_engine.contract.errors import ConfigError
from grpo_engine.models.fast.model import FastModel
from grpo_engine.models.loading import load_policy
from grpo_engine.models.policy import Policy
from grpo_engine.models.proof import Choice
from grpo_engine.models.shared_prompt_attention import recompute
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.parallel.shards import from_first, gathered_weights, sharded_modules
from grpo_engine.rollout.sampler.base import ContextSampler, Sampler, unwrapped
from grpo_engine.rollout.sampler.torch_sampler import TorchSampler
from grpo_engine.run.devices import choose_device

T = TypeVar("T")

JOIN_TIMEOUT = timedelta(minutes=5)
"""Maximum time for all ranks to start and connect; they may be unable to reach each other."""
COLLECTIVE_TIMEOUT = timedelta(minutes=20)
"""Maximum time that a rank waits for the others before the run fails. A dead rank is detected at once."""

ROOT_FORWARD = "run_as_forward"
"""Name of a sharded model's method that calls a function while the root's weights are gathered."""


@contextmanager
def joined_ranks(config: RunConfig) -> Iterator[RunConfig]:
    """Join the ranks that the environment names; yields the config with this rank's part of its host.

    Raises ConfigError if their number differs from the configured one.
    """
    world, runtime = int(os.environ.get("WORLD_SIZE", "1")), config.runtime
    if world == runtime.ranks == 1:
        yield config
        return
    if isinstance(config.method, TrainingFree):
        raise ConfigError("runtime.ranks: a training-free job trains no weights and runs as one process")
    _refuse_other_world(world, runtime.ranks)
    is_on_gpu = choose_device(runtime).type == "cuda"
    if is_on_gpu:
        device = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
        os.environ["LOCAL_RANK"] = str(device)  # vLLM takes it as the number of a visible device
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if is_on_gpu else "gloo", timeout=JOIN_TIMEOUT)
    dist.distributed_c10d._set_pg_timeout(COLLECTIVE_TIMEOUT)
    # Finalizers run in reverse order at exit, so this one follows vLLM's, whose groups need this group.
    leaving = weakref.finalize(joined_ranks, _leave)
    try:
        yield config.model_copy(update={"runtime": part_of_host(runtime, os.environ)})
        dist.barrier()  # no rank leaves while another one still needs it
    except BaseException:
        leaving.detach()  # do not wait: the others may be in a collective
        raise


def _refuse_other_world(world: int, ranks: int) -> None:
    if world == ranks:
        return
    found = f"WORLD_SIZE is {world}" if "WORLD_SIZE" in os.environ else "this process was started alone"
    hint = (
        f"Start one process per rank, as the service does: torchrun --nproc-per-node {ranks} -m grpo_engine …"
    )
    raise ConfigError(f"runtime.ranks is {ranks}, but {found}", hint=hint)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def agreed_by_ranks(should_stop: Callable[[], bool]) -> Callable[[], bool]:
    """`should_stop` with the same result on all ranks, which must call it at the same step."""
    return lambda: any(Ranks.current().gather(should_stop()))


def part_of_host(runtime: Runtime, environment: Mapping[str, str]) -> Runtime:
    """The runtime with threads and grading processes divided by the number of ranks on this host."""
    num_ranks = int(environment.get("LOCAL_WORLD_SIZE") or environment["WORLD_SIZE"])
    threads = runtime.num_threads or len(os.sched_getaffinity(0))
    return runtime.model_copy(
        update={
            "num_threads": max(1, threads // num_ranks),
            "grader_processes": max(1, runtime.grader_processes // num_ranks),
        }
    )


def open_policy(
    config: RunConfig, settings: Hyperparameters, device: torch.device, dtype: torch.dtype
) -> Policy:
    """The policy to train, with its frozen reference if the job needs a copy. Every rank must call it."""
    ranks = Ranks.current()
    has_copy = settings.lora == "full" and getattr(settings, "beta", 0.0) > 0
    load = partial(load_policy, config.model, settings, dtype=dtype, seed=config.seed)
    if config.runtime.sharding != "fsdp" or ranks.world == 1:
        policy = load(device)
        if has_copy:
            policy.keep_reference()
        return policy
    if getattr(settings, "self_distillation", None) is not None:
        raise ConfigError("runtime.sharding: fsdp does not support self_distillation; use replicated")
    if settings.quantization is not None:
        raise ConfigError("runtime.sharding: fsdp does not support quantization; use replicated")
    policy = load(torch.device("cpu" if ranks.is_first else "meta"))
    if has_copy:  # only the modules are copied, because both receive the same tensors
        same = {id(each): Parameter(each.data, requires_grad=False) for each in policy.model.parameters()}
        policy.reference_model = copy.deepcopy(policy.model, cast(dict[int, Any], same))
    shard(policy, device)
    return policy


def shard(policy: Policy, device: torch.device) -> None:
    """Divide the first rank's weights among the devices of all ranks, in place. The other ranks' model may be
    on the meta device."""
    facts = policy.forward, policy.stop_set, {name: each.dtype for name, each in _tensors(policy.model)}
    forward, policy.stop_set, dtypes = Ranks.current().gather(facts)[0]
    for model in (policy.model, policy.reference_model):
        if model is not None:
            for name, tensor in _tensors(model):
                tensor.data = tensor.data.to(dtypes[name])
            _shard_model(model, device)
    policy.device = device
    policy.use_forward(forward)
    if forward.name == "kernels":  # sampling still uses them, with gathered weights
        policy.forward = Choice("packed", "kernels bypass the layers, which gather sharded weights")
    policy.__class__ = ShardedPolicy


def _tensors(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _shard_model(model: PreTrainedModel, device: torch.device) -> None:
    """Receive and shard each decoder layer, and then everything else with the root.

    Layers are recomputed in the backward pass from the beginning. If a rank ran out of memory later, the
    others would be waiting for it, so no rank could repeat the pass.
    """
    names = set(model._no_split_modules or ())
    layers = [module for module in model.modules() if type(module).__name__ in names]
    inside = {module for layer in layers for module in layer.modules()}
    mesh = init_device_mesh(device.type, (Ranks.current().world,))
    for layer in layers:
        _receive(layer.modules(), device)
        recompute(layer, model)
        fully_shard(layer, mesh=mesh)
    _receive([module for module in model.modules() if module not in inside], device)
    fully_shard(model, mesh=mesh)
    # The loss is a mean over the whole step already, so gradients are summed, not averaged.
    for module in sharded_modules(model):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    setattr(model, ROOT_FORWARD, lambda function: function())
    register_fsdp_forward_method(model, ROOT_FORWARD)
    # FSDP records which parameters are trained when it first gathers them, so gather while the adapter is on.
    for module in sharded_modules(model):
        module.unshard()
        module.reshard()


def _receive(modules: Iterable[torch.nn.Module], device: torch.device) -> None:
    """Replace the modules' tensors with the first rank's, on `device`, sorted by name.

    Sorting gives all ranks the same order. PEFT moves the parameters of experts to the end of their module
    when it computes with them, which only the first rank has done.
    """
    received: dict[Tensor, Tensor] = {}  # a weight that two modules share stays shared
    for module in modules:
        named = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for name, tensor in sorted(named):
            is_weight = isinstance(tensor, Parameter)
            if tensor not in received:
                value = from_first(tensor, device)
                received[tensor] = Parameter(value, tensor.requires_grad) if is_weight else value
            if is_weight:
                delattr(module, name)
            setattr(module, name, received[tensor])


def run_with_root_weights(model: PreTrainedModel, function: Callable[[], T]) -> T:
    """The result of `function()`, called like the root's forward pass, with the root's weights gathered."""
    result = cast(T, getattr(model, ROOT_FORWARD)(function))
    if not torch.is_grad_enabled():
        cast(FSDPModule, model).reshard()  # with gradients, the backward pass reshards
    return result


class ShardedPolicy(Policy):
    """A policy of which each rank holds a share; all ranks must run the same passes."""

    @property
    def training_kernels(self) -> FastModel | None:
        """None, because kernels bypass the layers, which gather their weights."""
        return None

    def _logprobs(self, model: PreTrainedModel, *arguments: Any, **named: Any) -> tuple[Tensor, Tensor]:
        return run_with_root_weights(model, partial(super()._logprobs, model, *arguments, **named))


def with_gathered_weights(sampler: Sampler, policy: Policy) -> Sampler:
    """The sampler; if it computes with sharded weights, they are gathered while it samples."""
    is_sharded = isinstance(policy.model, FSDPModule)
    own = isinstance(unwrapped(sampler), TorchSampler)
    return ContextSampler(sampler, partial(gathered_weights, policy.model)) if is_sharded and own else sampler
