"""One vLLM that several ranks of a host share: tensor parallelism (`runtime.tensor_parallel`).

Each rank of a tensor-parallel group runs vLLM in its own process and on its own device, with its share of
every layer and of the cache (vLLM's `external_launcher`). Schedulers are deterministic: ranks that submit the
same requests in the same order make the same steps, and every rank has all results. So each rank submits the
requests of the whole group and keeps the completions of its own requests. These have the same seeds as
without tensor parallelism. Groups are consecutive ranks. Left out: groups over several hosts.
"""

import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch.distributed as dist

from grpo_engine.rollout.sampler.base import ContextSampler, Sampler, unwrapped
from grpo_engine.rollout.sampler.vllm.engine import VllmCompletion, VllmEngine, vllm_environment

T = TypeVar("T")


def open_engine(arguments: dict[str, Any]) -> VllmEngine:
    """The vLLM of this rank or its group. Raises ValueError, RuntimeError if vLLM refuses the arguments."""
    is_shared = arguments.get("tensor_parallel_size", 1) > 1
    return SharedEngine(arguments) if is_shared else VllmEngine(arguments)


class SharedEngine(VllmEngine):
    """A vLLM of several ranks. They must make the same calls, except that each submits its own requests."""

    patience_seconds = 0.05
    """Other ranks sample only together with this one, whose next turn may wait for theirs: an agent may have
    one place."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        _communicate_by_torch()
        super().__init__(arguments)
        from vllm.distributed.parallel_state import get_tp_group

        self.group: Any = get_tp_group().cpu_group
        self._own: list[dict[str, Any]] = []

    def submit(self, name: str, prompt_ids: Sequence[int], **parameters: Any) -> None:
        self._own.append({"name": name, "prompt_ids": tuple(prompt_ids), **parameters})

    def answers(self, before_step: Callable[[], object] = lambda: None) -> Generator[VllmCompletion]:
        """The same, without calls of `before_step`, because all ranks must submit requests together."""
        own, self._own = self._own, []
        yield from self._round(self._gather(own))

    @contextmanager
    def until_all_finish(self) -> Iterator[None]:
        """After the block, take part in the rounds of the other ranks until all of them have finished theirs.

        So each rank may call vLLM a different number of times inside it, as turns with tools do.
        """
        yield
        requests_R = self._gather(None)
        while any(requests is not None for requests in requests_R):
            for _ in self._round(requests_R):
                pass
            requests_R = self._gather(None)

    def agreed(self, condition: bool) -> bool:
        return all(self._gather(condition))

    def _round(self, requests_R: Sequence[list[dict[str, Any]] | None]) -> Generator[VllmCompletion]:
        """Sample the requests of all ranks of the group; yields this rank's completions.

        `requests_R`: None for a rank that has finished.
        """
        own = str(dist.get_rank(self.group))
        for rank, requests in enumerate(requests_R):
            for request in requests or ():
                super().submit(**{**request, "name": f"{rank}:{request['name']}"})
        with closing(super().answers()) as answers:
            for answer in answers:
                owner, _, name = answer.name.partition(":")
                if owner == own:
                    yield replace(answer, name=name)

    def _gather(self, value: T) -> list[T]:
        """The value of each rank of the group."""
        found: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(found, value, group=self.group)
        return found


def in_lockstep(sampler: Sampler) -> Sampler:
    """The sampler; if it shares vLLM with other ranks, each of its calls ends when theirs do."""
    engine = getattr(unwrapped(sampler), "engine", None)
    return ContextSampler(sampler, engine.until_all_finish) if isinstance(engine, SharedEngine) else sampler


def _communicate_by_torch() -> None:
    """On the host, use only torch's collectives, and nothing that would remain after a SIGKILL.

    vLLM (0.32) opens shared memory and a socket for worker processes, which do not exist here. On some CPUs
    its collectives use shared memory that is named by ranks only, so two jobs on a host would share it.
    """
    with vllm_environment():
        from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
        from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
    CpuCommunicator._all_group_ranks_share_shm_group_name = lambda self: False
    MessageQueue.create_from_process_group = lambda *arguments, **options: None
    warnings.filterwarnings("ignore", ".*all_gather_into_tensor", FutureWarning)  # vLLM calls it in each step
