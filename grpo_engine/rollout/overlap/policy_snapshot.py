"""A copy of the policy that stays fixed while the policy is trained, and a sampler that uses it.

Samplers on other devices have such a copy already.
The copy shares the frozen weights and owns the trained ones: with LoRA, the adapter (and during sampling the
merged layers, if it is merged); with full fine-tuning, a second model. Its modules are separate, so merging,
switching adapters and attention layouts do not interfere.
"""

import copy
from typing import Any, cast

import torch
from torch.nn import Parameter
from transformers import PreTrainedModel

from grpo_engine.contract.errors import ConfigError
from grpo_engine.models.policy import Policy
from grpo_engine.rollout.environments.sampler import EnvironmentSampler
from grpo_engine.rollout.overlap.own_stream import OwnStream
from grpo_engine.rollout.sampler.base import Sampler, sampler_name, unwrapped
from grpo_engine.rollout.sampler.remote.sampler import RemoteSampler
from grpo_engine.rollout.sampler.torch_sampler import TorchSampler
from grpo_engine.rollout.tools.sampler import ToolSampler


class PolicySnapshot:
    """A policy's weights at one moment and a sampler that uses them."""

    def __init__(self, policy: Policy, sampler: Sampler) -> None:
        self.policy = policy
        self.is_remote = isinstance(unwrapped(sampler), RemoteSampler)
        self.policy_copy = with_own_tokenizer(policy) if self.is_remote else copied_policy(policy)
        self.stream = OwnStream(policy.device)
        self.sampler = sampler_for(sampler, self.policy_copy)

    def update(self, version: int) -> None:
        """Copy the policy's current weights; `version` is the policy version."""
        if not self.is_remote:
            self._copy_weights()
        self.sampler.load_policy(version)

    def _copy_weights(self) -> None:
        with torch.no_grad(), self.stream.handing_over():
            for own, trained in zip(
                self.policy_copy.trainable.values(), self.policy.trainable.values(), strict=True
            ):
                own.copy_(trained)


def with_own_tokenizer(policy: Policy) -> Policy:
    """The same policy for another thread: two threads must not use one tokenizer."""
    shown = copy.copy(policy)
    shown.tokenizer = copy.deepcopy(policy.tokenizer)
    return shown


def copied_policy(policy: Policy) -> Policy:
    """A policy with its own modules and trained weights; frozen weights are shared."""
    # Share the tensor, not the parameter: merging an adapter puts another tensor into the parameter.
    # Quantised parameters are shared whole: they are never merged and own their scales.
    known: dict[int, Any] = {
        id(each): Parameter(each.data, requires_grad=False) if type(each) is Parameter else each
        for each in policy.model.parameters()
        if not each.requires_grad
    }
    peft_model = copy.deepcopy(policy.peft_model, known)
    model = copy.deepcopy(policy.model, known) if peft_model is None else peft_model.get_base_model()
    copied = Policy(
        cast(PreTrainedModel, model),
        copy.deepcopy(policy.tokenizer),
        policy.source,
        peft_model,
        autocast=policy.autocast,
    )
    copied.prove_shared_prompts()
    return copied


def sampler_for(sampler: Sampler, policy: Policy) -> Sampler:
    """A sampler like `sampler` for `policy`. Raises ConfigError if it cannot sample during training."""
    if isinstance(sampler, ToolSampler | EnvironmentSampler):
        return sampler.around(sampler_for(sampler.inner, policy), policy)
    if isinstance(sampler, RemoteSampler):
        return sampler
    if isinstance(sampler, TorchSampler):
        return TorchSampler(policy, sampler.sample_budget)
    raise ConfigError(
        f"max_staleness is 1, but the sampler {sampler_name(sampler)} cannot sample while the policy is "
        "trained: it then releases its memory to the trainer",
        hint="Set max_staleness to 0 or runtime.sampler to torch, or give the job resources.sampler_gpus.",
    )
