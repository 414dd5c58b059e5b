"""Every family trains, resumes, samples and exports; PEFT and transformers compute the same from files."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from grpo_engine.config.job import RunConfig
from grpo_engine.contract.events import StepFinished, Warned
from grpo_engine.models.policy import Policy
from tests.engine.families.catalogue import FAMILIES
from tests.engine.families.jobs import (
    RESULT,
    engine_logprobs,
    merged,
    plain_logprobs,
    run,
    sampling_differences,
    supervised,
    tensors_of_run,
)

pytestmark = [
    # peft, on targets of fused experts that it names itself
    pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning"),
]
TOLERANCE = 1e-4
"""Largest difference of a log-probability in float32."""
MOVED = 0.05
"""Least difference to the base model's of at least one log-probability."""


def forward_of(policy: Policy) -> str:
    if policy.fast is not None:
        return "own kernels"
    return "packed" if policy.shares_prompts else "plain"


def trained(config: RunConfig, folder: Path, forward: str) -> Policy:
    """Policy of a job of two steps in `folder/whole`."""
    events, policy = run(config, folder / "whole")
    assert [event.step for event in events if isinstance(event, StepFinished)] == [1, 2]
    assert [event.message for event in events if isinstance(event, Warned)] == []
    assert forward_of(policy) == forward
    return policy


def assert_resumes_exactly(config: RunConfig, folder: Path, kind: str) -> None:
    """The second step of the job in `folder/whole` is the same after a restart."""
    shutil.copytree(folder / "whole", folder / "resumed")
    shutil.rmtree(folder / "resumed" / RESULT)
    run(config, folder / "resumed")
    whole = tensors_of_run(folder / "whole", 2, kind)
    assert tensors_of_run(folder / "resumed", 2, kind) == whole
    assert tensors_of_run(folder / "whole", 1, kind) != whole


@pytest.mark.parametrize("lora", ["adapter", "full"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_job_trains_samples_and_exports_and_all_weights_resume(
    family: str, lora: str, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    base = family_folder(family)
    settings: Any = {"rank": 4} if lora == "adapter" else "full"
    kind = "adapter" if lora == "adapter" else "model"
    config = supervised(base, tmp_path, settings)
    policy = trained(config, tmp_path, FAMILIES[family].forward)

    assert float(sampling_differences(policy).max()) < TOLERANCE
    expected, result = engine_logprobs(policy), tmp_path / "whole" / RESULT / kind
    assert float((expected - plain_logprobs(base)).abs().max()) > MOVED
    if lora == "full":
        assert_resumes_exactly(config, tmp_path, kind)
        assert float((expected - plain_logprobs(result)).abs().max()) < TOLERANCE
        return
    assert all(bool(each.any()) for each in load_file(result / "adapter_model.safetensors").values())
    assert float((expected - plain_logprobs(base, result)).abs().max()) < TOLERANCE
    alone = plain_logprobs(merged(base, result, tmp_path / "export"))
    assert float((expected - alone).abs().max()) < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_a_bfloat16_job_resumes_and_moves_the_model_as_its_adapter_does_in_float32(
    family: str, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    base = family_folder(family)
    config = supervised(base, tmp_path, {"rank": 4}, "bfloat16")
    policy = trained(config, tmp_path, FAMILIES[family].forward)
    assert_resumes_exactly(config, tmp_path, "adapter")

    adapter = tmp_path / "whole" / RESULT / "adapter"
    exact = plain_logprobs(base, adapter)
    moved = float((exact - plain_logprobs(base)).abs().mean())
    rounding = float((exact - plain_logprobs(base, adapter, torch.bfloat16)).abs().mean())
    error = float((exact - engine_logprobs(policy)).abs().mean())
    assert error <= 2 * rounding
    assert error < moved / 4


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
