"""Sampling with vLLM: another program's arithmetic, so its log-probabilities are recorded and corrected for.

Each completion is a request with a seed of its own; vLLM computes a group's prompt once through its prefix
cache. The trained policy is handed over before each step under a new version, and a canary proves that it
arrived. While the trainer trains, vLLM sleeps where its device can.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from grpo_engine.config.job import Runtime
from grpo_engine.contract.errors import ConfigError
from grpo_engine.contract.records import FinishReason
from grpo_engine.models.lora import WEIGHTS_FILE, save_adapter
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Completion, Group, Prompt
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.parallel.shards import gathered
from grpo_engine.rollout.sampler.base import OnGroup, Sampling
from grpo_engine.rollout.sampler.vllm_canary import Reading, canary_tokens, prove, trained_logprobs
from grpo_engine.rollout.sampler.vllm_engine import Request, VllmCompletion, VllmEngine
from grpo_engine.rollout.sampler.vllm_options import engine_arguments

SEED_BITS = 63
TORCH_HINT = "Set runtime.sampler to torch for this job."


class VllmSampler:
    shares_weights = False

    def __init__(self, policy: Policy, runtime: Runtime, context_tokens: int, run_dir: Path) -> None:
        """Loads the base model into vLLM and compares the two. Raises ConfigError, PolicyMismatchError."""
        self.policy = policy
        self.scratch = run_dir / f"served-adapter-{Ranks.current().rank}"
        self.canary = canary_tokens(policy)
        arguments = engine_arguments(policy, runtime, max(context_tokens, len(self.canary) + 1))
        try:
            self.engine = VllmEngine(arguments)
        except (ValueError, RuntimeError, OSError) as error:
            raise ConfigError(f"vLLM cannot load {policy.source.name}: {error}", hint=TORCH_HINT) from error
        self.version: int | None = None
        self.proven = self._base_reading()

    def load_policy(self, version: int) -> None:
        """Hand the trained weights over, unless this version is served already.

        Raises ConfigError where vLLM refuses the adapter, PolicyMismatchError where it serves another policy.
        """
        self.engine.wake()
        if version == self.version:
            return
        if self.policy.peft_model is None:
            self.engine.load_weights(_checkpoint_weights(self.policy))
        else:
            self._load_adapter(version)
        self.engine.forget_prefixes()
        self.version = version
        reading = self._reading(version)
        prove(reading, self.proven, self.policy.compute_dtype)
        self.proven = reading

    def rest(self) -> None:
        """Nothing is sampled until the next policy: the device is the trainer's."""
        self.engine.sleep()

    def generate(
        self,
        prompts_P: Sequence[Prompt],
        group_size: int,
        sampling: Sampling,
        on_group: OnGroup | None = None,
    ) -> list[Group]:
        """P prompts → P groups; a group is told as soon as its last completion has ended."""
        self.engine.wake()
        for place, prompt in enumerate(prompts_P):
            for sample in range(group_size):
                self.engine.submit(self._request(prompt, place, sample, sampling))
        made: dict[int, dict[int, Completion]] = {place: {} for place in range(len(prompts_P))}
        groups: dict[int, Group] = {}
        with closing(self.engine.answers()) as answers:
            for answer in answers:
                place, sample = map(int, answer.name.split("/"))
                made[place][sample] = self._completion(answer)
                if len(made[place]) == group_size:
                    completions = tuple(made[place][number] for number in range(group_size))
                    groups[place] = Group(prompts_P[place], completions)
                    if on_group is not None:
                        on_group(place, groups[place])
        return [groups[place] for place in range(len(prompts_P))]

    def _request(self, prompt: Prompt, place: int, sample: int, sampling: Sampling) -> Request:
        return Request(
            name=f"{place}/{sample}",
            prompt_ids=prompt.token_ids,
            max_tokens=sampling.limit(place),
            temperature=sampling.temperature,
            seed=request_seed(sampling, *sampling.stream(place, sample)),
            stop=sampling.stop,
            stop_ids=tuple(sorted(self.policy.stop_set)),
        )

    def _completion(self, answer: VllmCompletion) -> Completion:
        tokens = answer.token_ids
        at_end = bool(tokens) and tokens[-1] in self.policy.stop_set
        assert self.version is not None, "load_policy comes before generate"
        return Completion(
            text=self.policy.decode(tokens[:-1] if at_end else tokens),
            token_ids=tokens,
            logprobs=answer.logprobs,
            finish_reason=FinishReason.STOP if answer.stopped else FinishReason.LENGTH,
            policy_version=self.version,
        )

    def _load_adapter(self, version: int) -> None:
        """Under a name and a number that no version had before."""
        policy = self.policy
        assert policy.peft_model is not None
        with memory_folder(self.scratch, WEIGHTS_FILE) as folder:
            save_adapter(policy.peft_model, folder, policy.source.name, policy.source.revision)
            try:
                self.engine.load_adapter(f"policy-{version}", version + 1, folder)
            except (ValueError, RuntimeError) as error:
                message = f"vLLM cannot serve this job's adapter: {error}"
                raise ConfigError(message, hint=f"Change lora.target_modules. {TORCH_HINT}") from error

    def _base_reading(self) -> Reading | None:
        """The two programs on the model without adapter; None where the trainer no longer has it."""
        policy = self.policy
        if policy.peft_model is None and policy.source.adapter is not None:
            return None
        with nullcontext() if policy.peft_model is None else policy.peft_model.disable_adapter():
            reading = self._reading(None)
        prove(reading, None, policy.compute_dtype)
        return reading

    def _reading(self, version: int | None) -> Reading:
        served = tuple(self.engine.prompt_logprobs(self.canary))
        return Reading(version, trained_logprobs(self.policy, self.canary), served)


def request_seed(sampling: Sampling, prompt: int, sample: int, turn: int) -> int:
    """Seed of one turn of one completion: of its name alone, so batching and resuming change nothing."""
    name = f"{sampling.seed}/{sampling.step}/{prompt}/{sample}/{turn}"
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % 2**SEED_BITS


def _checkpoint_weights(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """Every weight under the name that it has on disk, which is not always the one in memory."""
    whole = {name: gathered(weight) for name, weight in policy.model.state_dict().items()}
    yield from revert_weight_conversion(policy.model, whole).items()


@contextmanager
def memory_folder(folder: Path, large: str) -> Iterator[Path]:
    """A folder whose file named `large` is only in memory; gone afterwards.

    The memory is this process's own: however the process ends, nothing stays of it but the folder, and the
    next one to use that name clears it.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    memory = os.memfd_create(large)
    try:
        (folder / large).symlink_to(f"/proc/self/fd/{memory}")
        yield folder
    finally:
        os.close(memory)
        shutil.rmtree(folder)
