"""The surroundings in which vLLM is imported and started, and what it leaves of them.

vLLM arranges its process for itself alone: environment, threads, random numbers, warnings. This process also
trains and starts graders, so all of that is put back.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

ENVIRONMENT = {
    # in this process: no child to outlive it, and weights are handed over without another copy
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # the trainer's threads are the sampler's threads
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}
LOGGING_LEVEL = "ERROR"
"""Its start alone prints some forty lines; `VLLM_LOGGING_LEVEL` shows them."""


@contextmanager
def vllm_environment() -> Iterator[None]:
    """Around every first import of vLLM and around its start; only its own variables stay."""
    os.environ.update(ENVIRONMENT)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", LOGGING_LEVEL)
    before, threads = dict(os.environ), torch.get_num_threads()
    set_threads = torch.set_num_threads
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")  # its dependencies' deprecations are nothing a job could change
        try:
            yield
        finally:
            _put_back(before)
            # on a CPU it replaces the function by one that does nothing
            torch.set_num_threads = set_threads
            torch.set_num_threads(threads)


def _put_back(before: dict[str, str]) -> None:
    """LD_PRELOAD above all would reach every grader and sandbox that this process starts."""
    for name in [name for name in os.environ if not name.startswith("VLLM_")]:
        if name not in before:
            del os.environ[name]
    os.environ.update({name: value for name, value in before.items() if not name.startswith("VLLM_")})
