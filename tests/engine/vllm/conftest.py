"""Samplers on a real vLLM. Files named `test_vllm_…` need it and are run by `make test-vllm`."""

import gc
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.job import Runtime
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Prompt

collect_ignore_glob = [] if find_spec("vllm") else ["test_vllm_*.py"]

PROMPTS = [
    Prompt(row, str(row), tuple(6 + (row * 5 + i) % 60 for i in range(length)), {})
    for row, length in enumerate((3, 9, 1, 45))
]
"""The last is longer than a page of vLLM's prefix cache."""
KEPT: list[Any] = []
"""Whatever holds a vLLM: it has state of the whole process, which the end of one takes from the others."""


def pytest_sessionfinish() -> None:
    """Every vLLM collects garbage three times as it ends with this process, a second for each: do not."""
    if KEPT:
        gc.disable()
        gc.collect = lambda generation=2: 0


@pytest.fixture
def make_sampler(make_policy: Callable[..., Policy], tmp_path: Path) -> Callable[..., Any]:
    """A sampler that serves version 0 of a policy whose adapter already does something."""
    from grpo_engine.rollout.sampler.vllm.sampler import VllmSampler

    runtime = Runtime(sample_budget=64)

    def make(family: str = "qwen3", lora: Any = None, *, policy: Policy | None = None) -> VllmSampler:
        sampler = VllmSampler(policy or make_policy(family, lora), runtime, 160, tmp_path)
        sampler.load_policy(0)
        KEPT.append(sampler)
        return sampler

    return make


@pytest.fixture
def shared_sampler(make_sampler: Callable[..., Any]) -> Callable[..., Any]:
    """The same, made once for all tests that do not change its policy."""

    def find(family: str = "qwen3", lora: Any = None) -> Any:
        if (family, lora) not in _SHARED:
            _SHARED[family, lora] = make_sampler(family, lora)
        return _SHARED[family, lora]

    return find


_SHARED: dict[tuple[str, Any], Any] = {}
