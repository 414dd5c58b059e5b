"""vLLM inside this process: the only module that starts it and sends it requests.

vLLM runs in the engine's process, so it ends with it and leaves nothing behind. It assumes that it has the
process to itself and changes environment, threads, random numbers and warnings. All of that is restored,
because this process also trains and starts graders.
Left out: a second vLLM in a process, because the two would share state, and other ranks (`shared_engine.py`).
"""

import os
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

ENVIRONMENT = {
    # Start no child process, which could outlive this one and would need another copy of the weights.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # The sampler uses the trainer's threads.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}
LOGGING_LEVEL = "ERROR"
"""Starting vLLM prints some forty lines; set `VLLM_LOGGING_LEVEL` to see them."""
CANARY_REQUEST = "canary"
_KEPT: list[Any] = []
"""Every vLLM of a rank, kept because one that ends destroys the process group of the ranks."""


@contextmanager
def vllm_environment() -> Iterator[None]:
    """Required around the first import of vLLM and around its start; afterwards only its variables remain."""
    os.environ.update(ENVIRONMENT)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", LOGGING_LEVEL)
    before, threads = dict(os.environ), torch.get_num_threads()
    set_threads = torch.set_num_threads
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")  # a job cannot fix what its dependencies deprecate
        try:
            yield
        finally:
            # Otherwise every grader and sandbox that this process starts would inherit them, LD_PRELOAD above
            # all.
            for name in [name for name in os.environ if not name.startswith("VLLM_")]:
                if name not in before:
                    del os.environ[name]
            os.environ.update({name: text for name, text in before.items() if not name.startswith("VLLM_")})
            # On a CPU, vLLM replaces the function with one that does nothing.
            torch.set_num_threads = set_threads
            torch.set_num_threads(threads)


@dataclass(frozen=True, slots=True)
class VllmCompletion:
    name: str
    """Name of the request."""
    token_ids: tuple[int, ...]
    """T sampled tokens, end-of-sequence included if the model emitted it."""
    logprobs: tuple[float, ...]
    """T log-probabilities at the request's temperature (at 1 if it is 0)."""
    stopped: bool
    """Whether a stop token or string ended it, not a limit."""


class VllmEngine:
    patience_seconds: float | None = None
    """Maximum wait for a turn before `answers` must be called; None: any."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        """Loads the model. Raises ValueError or RuntimeError if vLLM refuses the arguments."""
        with vllm_environment():
            from vllm import EngineArgs
            from vllm.v1.engine.llm_engine import LLMEngine

            is_rank = dist.is_initialized()
            self.core: Any = LLMEngine.from_engine_args(EngineArgs(**arguments))
        if is_rank:
            _KEPT.append(self.core)
        _remove_rendezvous_file()
        self._stance = "force_eager" if arguments["enforce_eager"] else "default"
        self.can_sleep = bool(arguments["enable_sleep_mode"])
        self.asleep = False
        self.adapter: Any = None

    def submit(
        self,
        name: str,
        prompt_ids: Sequence[int],
        *,
        max_tokens: int,
        temperature: float,
        seed: int,
        stop: Sequence[str],
        stop_ids: Sequence[int],
    ) -> None:
        """Queue a request for one completion; vLLM runs as many at a time as its memory allows."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        parameters = SamplingParams(
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            stop=list(stop),
            include_stop_str_in_output=True,
            # The policy, not the served model's settings, decides what ends a completion.
            ignore_eos=True,
            stop_token_ids=list(stop_ids),
            detokenize=bool(stop),
            logprobs=0,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._add(name, prompt_ids, parameters)

    def answers(self, before_step: Callable[[], object] = lambda: None) -> Generator[VllmCompletion]:
        """Each queued request's completion as soon as it is finished; closing early drops the rest.

        `before_step`: called before each token of the running requests; it may submit further ones.
        """
        try:
            yield from map(_answer, self._finished(before_step))
        finally:
            left = list(self.core.output_processor.request_states)
            if left:
                self.core.abort_request(left, internal=True)
                list(self._finished())

    def agreed(self, condition: bool) -> bool:
        """Whether all ranks that share this vLLM meet the condition; each of them must call it."""
        return condition

    def prompt_logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probabilities of the tokens after the first, under the served weights."""
        from vllm import SamplingParams

        # Greedy, because a draw without a seed would use the trainer's random numbers.
        parameters = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        self._add(CANARY_REQUEST, token_ids, parameters)
        (output,) = self._finished()
        entries = output.prompt_logprobs[1:]
        return [entry[token].logprob for entry, token in zip(entries, token_ids[1:], strict=True)]

    def load_adapter(self, name: str, number: int, folder: Path) -> None:
        """Serve only this adapter from now on. Raises ValueError if vLLM cannot.

        The adapter is read now, so the folder may be removed afterwards.
        """
        from vllm.lora.request import LoRARequest

        request = LoRARequest(name, number, str(folder))
        for served in self.core.list_loras():
            self.core.remove_lora(served)
        self.core.add_lora(request)
        self.adapter = request

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Replace the model's weights; names are those of a checkpoint."""
        with torch.no_grad():
            self.core.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})

    def forget_prefixes(self) -> None:
        """Drop the cached prompts, which are valid only for the weights that computed them."""
        if not self.core.reset_prefix_cache():
            raise RuntimeError("vLLM cannot drop its prefix cache while requests are running")

    def sleep(self) -> None:
        """Release the device's memory for training: drop the cache, move the weights to the host."""
        if self.can_sleep and not self.asleep:
            self.core.sleep(level=1)
            self.asleep = True

    def wake(self) -> None:
        if self.asleep:
            torch.cuda.empty_cache()  # torch still reserves the memory that training has freed
            self.core.wake_up()
            self.asleep = False

    def _add(self, name: str, token_ids: Sequence[int], parameters: Any) -> None:
        prompt = {"prompt_token_ids": list(token_ids)}
        self.core.add_request(name, prompt, parameters, lora_request=self.adapter)

    def _finished(self, before_step: Callable[[], object] = lambda: None) -> Iterator[Any]:
        """vLLM's outputs of the queued requests, as they finish."""
        while self.core.has_unfinished_requests():
            before_step()
            # Otherwise vLLM compiles a helper for log-probabilities, which takes a CPU seconds.
            with torch.compiler.set_stance(self._stance):
                outputs = self.core.step()
            yield from (output for output in outputs if output.finished)


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


def _remove_rendezvous_file() -> None:
    """Remove torch.distributed's file, which one process does not need and a SIGKILL would leave behind."""
    store = dist.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if (path := getattr(store, "path", None)) is not None:
        Path(path).unlink(missing_ok=True)
