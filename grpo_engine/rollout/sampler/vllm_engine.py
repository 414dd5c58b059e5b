"""vLLM inside this process: the only file that speaks to it.

It runs in the engine's own process, so it dies with it and leaves nothing behind. Boundary: requests, weights
and memory; what a completion or a policy version is, the sampler knows. Left out: vLLM's own group of
processes (tensor parallelism), and a second vLLM in the process that outlives the first: they share state.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from grpo_engine.rollout.sampler.vllm_environment import vllm_environment

CANARY_REQUEST = "canary"


@dataclass(frozen=True, slots=True)
class Request:
    """One completion to sample."""

    name: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float
    seed: int
    stop: tuple[str, ...]
    stop_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class VllmCompletion:
    name: str
    token_ids: tuple[int, ...]
    """T sampled tokens, end-of-sequence included where the model gave one."""
    logprobs: tuple[float, ...]
    """T log-probabilities at the request's temperature (at 1 where it is 0)."""
    stopped: bool
    """It ended by itself, not at a limit."""


class VllmEngine:
    def __init__(self, arguments: dict[str, Any]) -> None:
        """Loads the model. Raises ValueError or RuntimeError where vLLM refuses the arguments."""
        with vllm_environment():
            from vllm import EngineArgs
            from vllm.v1.engine.llm_engine import LLMEngine

            self.core: Any = LLMEngine.from_engine_args(EngineArgs(**arguments))
        _forget_meeting_point()
        self.can_sleep = bool(arguments["enable_sleep_mode"])
        self.asleep = False
        self.adapter: Any = None

    def submit(self, request: Request) -> None:
        """Queue a request; vLLM runs as many side by side as its memory allows."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        parameters = SamplingParams(
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            seed=request.seed,
            stop=list(request.stop),
            include_stop_str_in_output=True,
            # what ends a completion is the policy's word, not the served model's settings
            ignore_eos=True,
            stop_token_ids=list(request.stop_ids),
            detokenize=bool(request.stop),
            logprobs=0,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._add(request.name, request.prompt_ids, parameters)

    def answers(self) -> Generator[VllmCompletion]:
        """Each queued request's answer as soon as it is whole; leaving early drops the rest."""
        try:
            while self.core.has_unfinished_requests():
                for output in self.core.step():
                    if output.finished:
                        yield _answer(output)
        finally:
            self._drop_unfinished()

    def prompt_logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probabilities of the tokens after the first, under what is served now."""
        from vllm import SamplingParams

        # greedy: a draw without a seed would take from the trainer's random numbers
        parameters = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        self._add(CANARY_REQUEST, token_ids, parameters)
        (output,) = [each for each in _drained(self.core) if each.finished]
        entries = output.prompt_logprobs[1:]
        return [entry[token].logprob for entry, token in zip(entries, token_ids[1:], strict=True)]

    def load_adapter(self, name: str, number: int, folder: Path) -> None:
        """Serve this adapter from now on, and no other. Raises ValueError where vLLM cannot.

        It is read at once: the folder may be removed afterwards.
        """
        from vllm.lora.request import LoRARequest

        request = LoRARequest(name, number, str(folder))
        for served in self.core.list_loras():
            self.core.remove_lora(served)
        self.core.add_lora(request)
        self.adapter = request

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Take these (under the names that they have in a checkpoint) for the model's own."""
        with torch.no_grad():
            self.core.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})

    def forget_prefixes(self) -> None:
        """What was computed of prompts belongs to the weights it was computed with."""
        if not self.core.reset_prefix_cache():
            raise RuntimeError("vLLM keeps its prefix cache: requests are still running")

    def sleep(self) -> None:
        """Give the device's memory to training: the cache goes, the weights move to the host."""
        if self.can_sleep and not self.asleep:
            self.core.sleep(level=1)
            self.asleep = True

    def wake(self) -> None:
        if self.asleep:
            torch.cuda.empty_cache()  # what training no longer needs is still reserved for it
            self.core.wake_up()
            self.asleep = False

    def _add(self, name: str, token_ids: Sequence[int], parameters: Any) -> None:
        prompt = {"prompt_token_ids": list(token_ids)}
        self.core.add_request(name, prompt, parameters, lora_request=self.adapter)

    def _drop_unfinished(self) -> None:
        left = list(self.core.output_processor.request_states)
        if left:
            self.core.abort_request(left, internal=True)
            list(_drained(self.core))


def _drained(core: Any) -> Iterator[Any]:
    while core.has_unfinished_requests():
        yield from core.step()


def _answer(output: Any) -> VllmCompletion:
    (completion,) = output.outputs
    token_ids = tuple(completion.token_ids)
    if completion.finish_reason not in ("stop", "length"):
        raise RuntimeError(f"vLLM ended a completion with {completion.finish_reason!r}")
    return VllmCompletion(
        name=output.request_id,
        token_ids=token_ids,
        logprobs=tuple(
            entry[token].logprob for entry, token in zip(completion.logprobs, token_ids, strict=True)
        ),
        stopped=completion.finish_reason == "stop",
    )


def _forget_meeting_point() -> None:
    """A group of one process needs no file to meet at, and nobody would remove it after a SIGKILL."""
    store = dist.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if (path := getattr(store, "path", None)) is not None:
        Path(path).unlink(missing_ok=True)
