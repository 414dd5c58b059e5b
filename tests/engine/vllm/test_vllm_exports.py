"""vLLM serves the files that a job exports: it computes what the engine computes, and not the base."""

from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_engine.config.hyperparameters import Lora
from grpo_engine.config.job import ModelSource, Runtime, SupervisedHyperparameters
from grpo_engine.models.loading import load_policy
from grpo_engine.models.policy import Policy
from grpo_engine.rollout.sampler.vllm.engine import VllmEngine
from grpo_engine.rollout.sampler.vllm.options import engine_arguments, why_unsupported
from tests.engine.families.catalogue import FAMILIES
from tests.engine.families.jobs import IDS, RESULT, engine_logprobs, merged, run, supervised
from tests.engine.families.models import make_family
from tests.engine.one_group import settings
from tests.engine.vllm.conftest import KEPT


def served(policy: Policy, adapter: Path | None = None, **arguments: Any) -> list[torch.Tensor]:
    """Log-probabilities of `IDS` by vLLM: without and, if given, with the adapter."""
    engine = VllmEngine({**engine_arguments(policy, Runtime(sample_budget=8), 128), **arguments})
    KEPT.append(engine)
    found = [torch.tensor(engine.prompt_logprobs(IDS))]
    if adapter is not None:
        engine.load_adapter("exported", 1, adapter)
        engine.forget_prefixes()
        found.append(torch.tensor(engine.prompt_logprobs(IDS)))
    return found


@pytest.mark.parametrize("family", ["qwen3", "llama3", "gemma3"])
def test_an_exported_adapter_is_served(family: str, tmp_path: Path) -> None:
    base = make_family(tmp_path / "base", FAMILIES[family])
    _, policy = run(supervised(base, tmp_path, {"rank": 4}), tmp_path / "run")
    without, with_adapter = served(policy, tmp_path / "run" / RESULT / "adapter")
    expected = engine_logprobs(policy)
    assert float((expected - without).abs().max()) > 0.05
    assert float((expected - with_adapter).abs().max()) < 1e-4


def test_a_merged_export_is_served(tmp_path: Path) -> None:
    base = make_family(tmp_path / "base", FAMILIES["qwen3"])
    _, policy = run(supervised(base, tmp_path, {"rank": 4}), tmp_path / "run")
    folder = merged(base, tmp_path / "run" / RESULT / "adapter", tmp_path / "export")
    (found,) = served(policy, model=str(folder), enable_lora=False)
    assert float((engine_logprobs(policy) - found).abs().max()) < 1e-4


def test_a_class_that_vllm_cannot_import_is_a_reason(tmp_path: Path) -> None:
    """Its Qwen3.5 needs torchvision, which the environment of these tests lacks."""
    base = make_family(tmp_path / "base", FAMILIES["qwen3.5"])
    source = ModelSource(name="base", path=str(base))
    adapter = SupervisedHyperparameters(lora=Lora(rank=4))  # type: ignore[call-arg]
    policy = load_policy(source, adapter, torch.device("cpu"), torch.float32, seed=5)
    reason = why_unsupported(policy, settings())
    assert reason == "vLLM cannot load Qwen3_5ForCausalLM here: No module named 'torchvision'"
