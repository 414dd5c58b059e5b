"""The process of a sampler with its own device. It answers requests until its connection closes.

The weights of each policy are in the run directory before the first request for them. If the job causes an
error, the error is the reply; any other error ends the process, and the launcher replaces it.
"""

import socket
import traceback
from contextlib import suppress
from pathlib import Path
from typing import cast

import torch
from safetensors import safe_open

from grpo_engine.config.job import Reinforcement, RunConfig
from grpo_engine.contract.errors import PolicyMismatchError
from grpo_engine.contract.sampling import policy_file
from grpo_engine.models.loading import load_policy
from grpo_engine.objective.types import Completion, Prompt
from grpo_engine.rollout.sampler.base import Sampler
from grpo_engine.rollout.sampler.choice import open_local_sampler
from grpo_engine.rollout.sampler.remote.messages import SampleReply, SampleRequest
from grpo_engine.rollout.sampler.remote.sampler import inherited_connection
from grpo_engine.run.build import prepare_device
from grpo_engine.run.engine_errors import failure_of

OTHER_BASE = (
    "Give every host the same files of the model, and submit the job again; a new job can continue from the "
    "last checkpoint."
)


def serve_samples(config: RunConfig, run_dir: Path, descriptor: int) -> None:
    """Answer requests until the connection's other end closes."""
    served = ServedPolicy(config, run_dir)
    with suppress(EOFError), inherited_connection(descriptor) as connection:
        while True:
            request = SampleRequest.model_validate_json(connection.recv_bytes())
            connection.send_bytes(served.reply(request).model_dump_json().encode())


class ServedPolicy:
    """The job's policy and a sampler of it, loaded with the first request."""

    def __init__(self, config: RunConfig, run_dir: Path) -> None:
        self.config, self.run_dir = config, run_dir
        self.version: int | None = None
        self._sampler: Sampler | None = None

    def reply(self, request: SampleRequest) -> SampleReply:
        """The reply to a request. Raises exceptions that are the machine's fault."""
        try:
            return SampleReply(groups=self._sample(request))
        except Exception as error:
            failed = failure_of(error)
            if failed is None:
                raise
            traceback.print_exception(error)
            return SampleReply(failure=failed)

    def _sample(self, request: SampleRequest) -> tuple[tuple[Completion, ...], ...]:
        sampler = self._sampler = self._sampler or self._open(request)
        if request.version != self.version:
            self._load(request.version)
            sampler.load_policy(request.version)
            self.version = request.version
        prompts = [Prompt(place, "", token_ids, {}) for place, token_ids in enumerate(request.prompts)]
        groups = sampler.generate(prompts, request.group_size, request.sampling)
        return tuple(group.completions for group in groups)

    def _open(self, request: SampleRequest) -> Sampler:
        config = self.config
        settings = cast(Reinforcement, config.method).reinforcement.hyperparameters
        device, dtype = prepare_device(config.runtime)
        self.policy = load_policy(config.model, settings, device, dtype, config.seed)
        self._refuse_other_base(request.base_fingerprint)
        self.policy.fix_positions(request.context_tokens)
        return open_local_sampler(config.runtime, self.policy, settings, request.context_tokens, self.run_dir)

    def _refuse_other_base(self, trained: str) -> None:
        """Raise PolicyMismatchError if the base model that is trained has other weights."""
        own = self.policy.base_fingerprint
        if own and trained and own != trained:
            place = f"{self.config.model.name} on {socket.gethostname()}"
            raise PolicyMismatchError(
                f"the weights of {place} are not those being trained",
                hint=OTHER_BASE,
                evidence=(f"base model of the sampler: {own[:12]}", f"of the training: {trained[:12]}"),
            )

    def _load(self, version: int) -> None:
        """Copy the trained weights into the policy, and delete their file."""
        path, trainable = self.run_dir / policy_file(version), self.policy.trainable
        with safe_open(path, framework="pt") as file, torch.no_grad():
            if set(file.keys()) != trainable.keys():
                raise PolicyMismatchError("the trained weights are not those of the sampler's model")
            for name, parameter in trainable.items():
                parameter.copy_(file.get_tensor(name))
        path.unlink()
