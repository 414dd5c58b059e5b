"""Every family trains, resumes, samples and exports; PEFT and transformers compute the same from files."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from grpo_engine.contract.events import StepFinished, Warned
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Prompt
from grpo_engine.rollout.sampler.base import Sampling
from grpo_engine.rollout.sampler.torch_sampler import TorchSampler
from tests.engine.families.catalogue import FAMILIES
from tests.engine.families.jobs import (
    RESULT,
    engine_logprobs,
    merged,
    plain_logprobs,
    run,
    supervised,
    tensors_of_run,
)
from tests.engine.injection import trained_batch

pytestmark = [
    # peft, on targets of fused experts that it names itself
    pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning"),
]
TOLERANCE = {"float32": 1e-4}
"""Largest difference of a log-probability; a dtype is added with its own."""
MOVED = 0.05
"""Least difference to the base model's of at least one log-probability."""


def sampled_difference(policy: Policy) -> float:
    """Largest difference between the log-probabilities of sampling and of training."""
    prompts = [Prompt(n, "", tuple(range(20, 23 + 9 * n)), {}) for n in range(2)]
    groups = TorchSampler(policy, 64).generate(prompts, 2, Sampling(max_tokens=10, seed=3))
    found = []
    for group in groups:
        batch = trained_batch(group)
        with torch.no_grad():
            found.append(float((policy.logprobs(batch)[0] - batch.sampled_logprobs_N).abs().max()))
    return max(found)


def forward_of(policy: Policy) -> str:
    if policy.fast is not None:
        return "own kernels"
    return "packed" if policy.shares_prompts else "plain"


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("lora", ["adapter", "full"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_job_trains_resumes_samples_and_exports(
    family: str, lora: str, dtype: str, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    base, limit = family_folder(family), TOLERANCE[dtype]
    settings: Any = {"rank": 4} if lora == "adapter" else "full"
    kind = "adapter" if lora == "adapter" else "model"
    config = supervised(base, tmp_path, settings, dtype)
    events, policy = run(config, tmp_path / "whole")
    assert [event.step for event in events if isinstance(event, StepFinished)] == [1, 2]
    assert [event.message for event in events if isinstance(event, Warned)] == []
    assert forward_of(policy) == FAMILIES[family].forward

    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    shutil.rmtree(tmp_path / "resumed" / RESULT)
    run(config, tmp_path / "resumed")
    whole = tensors_of_run(tmp_path / "whole", 2, kind)
    assert tensors_of_run(tmp_path / "resumed", 2, kind) == whole
    assert tensors_of_run(tmp_path / "whole", 1, kind) != whole

    assert sampled_difference(policy) < limit
    expected, result = engine_logprobs(policy), tmp_path / "whole" / RESULT / kind
    assert float((expected - plain_logprobs(base)).abs().max()) > MOVED
    if lora == "full":
        assert float((expected - plain_logprobs(result)).abs().max()) < limit
        return
    assert all(bool(each.any()) for each in load_file(result / "adapter_model.safetensors").values())
    assert float((expected - plain_logprobs(base, result)).abs().max()) < limit
    alone = plain_logprobs(merged(base, result, tmp_path / "export"))
    assert float((expected - alone).abs().max()) < limit


def test_a_copy_without_generation_config_stops_where_its_template_ends_a_turn(
    family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    base = shutil.copytree(family_folder("gpt-oss"), tmp_path / "copy")
    (base / "generation_config.json").unlink()
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.eos_token = "<|endoftext|>"
    tokenizer.save_pretrained(base)
    _, policy = run(supervised(base, tmp_path, {"rank": 1}), tmp_path / "run")
    stops = tokenizer.convert_ids_to_tokens(sorted(policy.stop_set))
    assert stops == ["<|endoftext|>", "<|return|>", "<|call|>"]
