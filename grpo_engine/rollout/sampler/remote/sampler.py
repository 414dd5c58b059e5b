"""The trainer's side: hands each policy over, and divides a step's prompts among the samplers.

A completion's random numbers depend only on its position in the step, so neither the number of samplers nor
the loss of one changes a token.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path

from grpo_engine.config.job import Runtime
from grpo_engine.contract.errors import ConfigError, EngineError, MachineError
from grpo_engine.contract.events import Failed
from grpo_engine.contract.sampling import (
    CONNECTION,
    PolicyWritten,
    SamplingAnswer,
    SamplingOrder,
    policy_file,
)
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Group, Prompt
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.parallel.shards import save_gathered
from grpo_engine.rollout.sampler.base import GroupAssembly, OnGroup, OnTurn, Sampling
from grpo_engine.rollout.sampler.remote.messages import SampleReply, SampleRequest
from grpo_engine.rollout.sampler.turns import TurnQueue, sample_in_rounds


class SamplerError(EngineError):
    """A sampler cannot serve the job; code and hint are those of its own error."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(f"a sampler: {failed.message}", hint=failed.hint, evidence=failed.evidence)
        self.code = failed.code


class RemoteSampler:
    def __init__(
        self, policy: Policy, runtime: Runtime, context_tokens: int, run_dir: Path, *, matches_trainer: bool
    ) -> None:
        """Raises ConfigError if there are no samplers to connect to."""
        if CONNECTION not in os.environ:
            message = f"runtime.samplers is {runtime.samplers}, but this process was started without samplers"
            raise ConfigError(message, hint="Only the service starts them: resources.sampler_gpus.")
        if runtime.tensor_parallel > 1:
            message = "runtime.tensor_parallel divides vLLM among ranks, but this job's ranks do not sample"
            raise ConfigError(message, hint="Set it to 1, or submit the job without resources.sampler_gpus.")
        self.matches_trainer = matches_trainer
        self.policy, self.context_tokens, self.run_dir = policy, context_tokens, run_dir
        self.version: int | None = None
        self.num_replaced = 0
        self._samplers = samplers_of(Ranks.current(), runtime.samplers)
        self._connection = inherited_connection(int(os.environ[CONNECTION]))
        self._numbers = count()
        self._sending = threading.Lock()

    def load_policy(self, version: int) -> None:
        """Write the trained weights for samplers without this version; every rank must call it."""
        if version == self.version:
            return
        is_first = Ranks.current().is_first
        save_gathered(self.policy.trainable, self.run_dir / policy_file(version) if is_first else None)
        if is_first:
            self._send(PolicyWritten(version=version))
        self.version = version

    def rest(self) -> dict[str, float]:
        return {"sampling/replaced_samplers": float(self.num_replaced)}

    def generate(
        self,
        prompts_P: Sequence[Prompt],
        group_size: int,
        sampling: Sampling,
        on_group: OnGroup | None = None,
    ) -> list[Group]:
        """Sample on the remote devices. Raises SamplerError, or MachineError if no sampler answers."""
        assert self.version is not None, "load_policy comes before generate"
        groups = GroupAssembly(prompts_P, group_size, on_group)
        first_of: dict[int, int] = {}
        for sampler, start, stop in self._parts(len(prompts_P)):
            request = SampleRequest(
                version=self.version,
                base_fingerprint=self.policy.base_fingerprint,
                context_tokens=self.context_tokens,
                prompts=tuple(prompt.token_ids for prompt in prompts_P[start:stop]),
                group_size=group_size,
                sampling=sampling.part(start, stop),
            )
            number, text = next(self._numbers), request.model_dump_json()
            first_of[number] = start
            self._send(SamplingOrder(number=number, sampler=sampler, version=self.version, request=text))
        while first_of:
            answer = self._receive()
            found = self._reply(answer).groups
            for place, completions in enumerate(found, first_of.pop(answer.number)):
                for sample, completion in enumerate(completions):
                    groups.add(place, sample, completion)
        return groups.groups()

    def sample_turns(self, turns: TurnQueue, sampling: Sampling, on_turn: OnTurn) -> None:
        sample_in_rounds(self, turns, sampling, on_turn)

    def _parts(self, num_prompts: int) -> Iterator[tuple[int, int, int]]:
        """Sampler, first prompt and end of each part that is not empty."""
        own = self._samplers
        for place, sampler in enumerate(own):
            start, stop = (num_prompts * each // len(own) for each in (place, place + 1))
            if start < stop:
                yield sampler, start, stop

    def _reply(self, answer: SamplingAnswer) -> SampleReply:
        if answer.problem:
            raise MachineError(f"no sampler replied: {answer.problem}")
        self.num_replaced = max(self.num_replaced, answer.num_replaced)
        reply = SampleReply.model_validate_json(answer.reply)
        if reply.failure is not None:
            raise SamplerError(reply.failure)
        return reply

    def _send(self, message: PolicyWritten | SamplingOrder) -> None:
        with self._sending, _lost_connection_is_machine_error():
            self._connection.send_bytes(message.model_dump_json().encode())

    def _receive(self) -> SamplingAnswer:
        with _lost_connection_is_machine_error():
            return SamplingAnswer.model_validate_json(self._connection.recv_bytes())


@contextmanager
def _lost_connection_is_machine_error() -> Iterator[None]:
    try:
        yield
    except (EOFError, ConnectionError):
        raise MachineError("the connection to the samplers was lost") from None


def inherited_connection(descriptor: int) -> Connection:
    """The launcher's connection, which this process's own children do not inherit."""
    os.set_inheritable(descriptor, False)
    return Connection(descriptor)


def samplers_of(ranks: Ranks, num_samplers: int) -> Sequence[int]:
    """Numbers of the samplers that a rank uses; with fewer samplers than ranks, several ranks share one."""
    first, stop = (num_samplers * rank // ranks.world for rank in (ranks.rank, ranks.rank + 1))
    return range(first, max(stop, first + 1))
