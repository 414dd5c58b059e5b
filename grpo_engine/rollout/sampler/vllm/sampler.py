"""Sampling with vLLM. Its numerics differ, so its log-probabilities are recorded for a correction.

Each completion is a request with its own seed; vLLM computes a group's prompt once through its prefix cache.
The trained policy is handed over before each step under a new version, and a canary proves that it arrived.
While the trainer trains, vLLM sleeps unless the largest step so far would fit beside it.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from itertools import groupby
from pathlib import Path

from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from grpo_engine.config.job import Runtime
from grpo_engine.contract.errors import ConfigError
from grpo_engine.models import device_memory
from grpo_engine.models.lora import WEIGHTS_FILE, save_adapter
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Completion, Group, Prompt
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.parallel.shards import gathered, sharded_modules
from grpo_engine.rollout.sampler.base import (
    GroupAssembly,
    NextTurn,
    OnGroup,
    OnTurn,
    Sampling,
    finished_completion,
)
from grpo_engine.rollout.sampler.turns import TurnQueue
from grpo_engine.rollout.sampler.vllm.base import served_base
from grpo_engine.rollout.sampler.vllm.canary import Reading, canary_tokens, prove, trained_logprobs
from grpo_engine.rollout.sampler.vllm.engine import VllmCompletion
from grpo_engine.rollout.sampler.vllm.options import engine_arguments
from grpo_engine.rollout.sampler.vllm.shared_engine import open_engine

SEED_BITS = 63
HEADROOM = 1.2
"""Free bytes required for each byte of training beside an awake vLLM; free memory is fragmented."""
TORCH_HINT = "Set runtime.sampler to torch for this job."


class VllmSampler:
    matches_trainer = False

    def __init__(self, policy: Policy, runtime: Runtime, context_tokens: int, run_dir: Path) -> None:
        """Load the base model into vLLM and compare them. Raises ConfigError, PolicyMismatchError."""
        self.policy = policy
        self.scratch = run_dir / f"served-adapter-{Ranks.current().rank}"
        self.canary = canary_tokens(policy)
        arguments = engine_arguments(policy, runtime, max(context_tokens, len(self.canary) + 1))
        try:
            with served_base(policy, run_dir) as other_base:
                self.engine = open_engine(arguments | other_base)
        except (ValueError, RuntimeError, OSError) as error:
            raise ConfigError(f"vLLM cannot load {policy.source.name}: {error}", hint=TORCH_HINT) from error
        self.training_bytes = 0
        """Peak that the trainer has allocated while vLLM slept, without the memory that it keeps."""
        self.stays_awake = False
        self.version: int | None = None
        self.proven = self._base_reading()

    def load_policy(self, version: int) -> None:
        """Hand the trained weights over, unless vLLM already serves this version.

        Raises ConfigError if vLLM refuses the adapter, PolicyMismatchError if it serves another policy.
        """
        self._wake()
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

    def rest(self) -> dict[str, float]:
        if not self.stays_awake:
            self.engine.sleep()
            device_memory.forget_peak(self.policy.device)
        return {"memory/sampler_slept": float(self.engine.asleep)}

    def _wake(self) -> None:
        """Wake up, and stay awake from now on if training fits beside vLLM.

        The trainer tries its largest step before the first call, so its peak is known.
        """
        if not self.engine.asleep:
            return
        device = self.policy.device
        self.training_bytes = max(self.training_bytes, device_memory.peak_bytes_above_now(device))
        self.engine.wake()
        moments = 2 * sum(weight.nbytes for weight in self.policy.trainable.values())
        free = device_memory.free_bytes(device) or 0
        self.stays_awake = self.engine.agreed(free >= HEADROOM * (self.training_bytes + moments))

    def generate(
        self,
        prompts_P: Sequence[Prompt],
        group_size: int,
        sampling: Sampling,
        on_group: OnGroup | None = None,
    ) -> list[Group]:
        self._wake()
        for place, prompt in enumerate(prompts_P):
            for sample in range(group_size):
                stream, limit = sampling.stream(place, sample), sampling.limit(place)
                self._submit(f"{place}/{sample}", prompt, stream, limit, sampling)
        groups = GroupAssembly(prompts_P, group_size, on_group)
        with closing(self.engine.answers()) as answers:
            for answer in answers:
                place, sample = map(int, answer.name.split("/"))
                groups.add(place, sample, self._completion(answer))
        return groups.groups()

    def sample_turns(self, turns: TurnQueue, sampling: Sampling, on_turn: OnTurn) -> None:
        """Sample turns together, each from when it is ready; if ranks share this vLLM, in rounds."""
        self._wake()
        running: dict[str, NextTurn] = {}

        def submit(new: Sequence[NextTurn]) -> None:
            for turn in new:
                name = "/".join(map(str, turn.continuation.stream))
                running[name] = turn
                self._submit(
                    name, turn.prompt, turn.continuation.stream, turn.continuation.max_tokens, sampling
                )

        while (new := turns.wait(self.engine.patience_seconds)) is not None:
            submit(new)
            with closing(self.engine.answers(lambda: submit(turns.ready()))) as answers:
                for answer in answers:
                    on_turn(running.pop(answer.name), self._completion(answer))

    def _submit(
        self, name: str, prompt: Prompt, stream: tuple[int, int, int], limit: int, sampling: Sampling
    ) -> None:
        self.engine.submit(
            name,
            prompt.token_ids,
            max_tokens=limit,
            temperature=sampling.temperature,
            seed=request_seed(sampling, *stream),
            stop=sampling.stop,
            stop_ids=sorted(self.policy.stop_set),
        )

    def _completion(self, answer: VllmCompletion) -> Completion:
        assert self.version is not None, "load_policy comes before generate"
        return finished_completion(
            self.policy, self.version, answer.token_ids, answer.logprobs, stopped=answer.stopped
        )

    def _load_adapter(self, version: int) -> None:
        """Serve the adapter under a name and a number that no earlier version had."""
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
        """The canary on the model without its adapter; None if the trainer no longer has that model."""
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
    """Seed of one turn of one completion, which does not depend on batching or resuming."""
    name = f"{sampling.seed}/{sampling.step}/{prompt}/{sample}/{turn}"
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % 2**SEED_BITS


def _checkpoint_weights(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """Every weight under its name on disk, which may differ from the one in memory.

    Sharded weights are gathered layer by layer, so that the whole model is never in one rank's memory.
    """
    weights = policy.model.state_dict()
    parts = groupby(weights, _layer_of) if sharded_modules(policy.model) else [("", weights)]
    for _, names in parts:
        whole = {name: gathered(weights[name]) for name in names}
        yield from revert_weight_conversion(policy.model, whole).items()


def _layer_of(name: str) -> str:
    """`model.layers.3.mlp.up_proj.weight` → `model.layers.3`; empty for weights outside of the layers.

    Names on disk that stand for one tensor in memory, such as a layer's experts, belong to the same layer.
    """
    found = re.match(r".*?\.\d+(?=\.)", name)
    return found[0] if found else ""


@contextmanager
def memory_folder(folder: Path, large: str) -> Iterator[Path]:
    """A folder whose file named `large` exists only in memory; removed afterwards.

    The memory belongs to this process: if the process is killed, only the folder remains, and the next
    process to use that name clears it.
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
