"""Every family, and models taken out of other files, on a real GPU: run by `make gpu-check`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_engine.config.job import RunConfig
from grpo_engine.models.policy import Policy
from tests.engine.conftest import cut
from tests.engine.families.catalogue import FAMILIES
from tests.engine.families.conftest import family_folder as family_folder
from tests.engine.families.jobs import (
    RESULT,
    engine_logprobs,
    plain_logprobs,
    run,
    sampling_differences,
    supervised,
)
from tests.engine.families.stored import make_stored
from tests.engine.families.wrappers import WRAPPERS, make_wrapper

pytestmark = [
    pytest.mark.needs_gpu,
    # peft, on targets of fused experts that it names itself
    pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning"),
]
TOLERANCE, MOVED = 1e-3, 0.05
BFLOAT16_MEDIAN = 0.05
"""Largest median difference, in nats per token; for single tokens, rounding chooses another expert."""


def trained(config: RunConfig, folder: Path) -> Policy:
    _, policy = run(cut(config, device="cuda"), folder / "run")
    assert policy.device.type == "cuda"
    return policy


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_trained_on_a_gpu_gives_the_same_logprobs_from_its_files_on_a_cpu(
    family: str, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    base = family_folder(family)
    policy = trained(supervised(base, tmp_path, {"rank": 4}), tmp_path)
    assert float(sampling_differences(policy).max()) < TOLERANCE
    found = engine_logprobs(policy).cpu()
    assert float((found - plain_logprobs(base)).abs().max()) > MOVED
    adapter = tmp_path / "run" / RESULT / "adapter"
    assert float((found - plain_logprobs(base, adapter)).abs().max()) < TOLERANCE


@pytest.mark.parametrize("lora", ["adapter", "full"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_trains_in_bfloat16_what_it_samples(
    family: str, lora: str, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    settings = {"rank": 4} if lora == "adapter" else "full"
    policy = trained(supervised(family_folder(family), tmp_path, settings, "bfloat16"), tmp_path)
    assert float(sampling_differences(policy).median()) < BFLOAT16_MEDIAN


@pytest.mark.parametrize("kind", [kind for kind in WRAPPERS if kind != "LlavaConfig"])
def test_a_language_model_of_a_vision_language_model_trains_on_a_gpu(kind: str, tmp_path: Path) -> None:
    base = make_wrapper(tmp_path / "base", kind)
    policy = trained(supervised(base, tmp_path, {"rank": 4}), tmp_path)
    assert float(sampling_differences(policy).max()) < TOLERANCE
    adapter = tmp_path / "run" / RESULT / "adapter"
    found = engine_logprobs(policy).cpu()
    assert float((found - engine_logprobs(policy, reference=True).cpu()).abs().max()) > MOVED
    assert adapter.is_dir()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["gpt-oss", "qwen3", "qwen3-moe"])
def test_stored_quantised_weights_are_converted_on_a_gpu(family: str, dtype: str, tmp_path: Path) -> None:
    base, values = make_stored(tmp_path / "base", family)
    policy = trained(supervised(base, tmp_path, {"rank": 4}, dtype), tmp_path)
    weights = {name.replace(".base_layer", ""): each for name, each in policy.model.named_parameters()}
    compared = values.keys() & weights.keys()
    assert compared
    for name in compared:
        difference = (weights[name].detach().float().cpu() - values[name]).abs().max()
        assert float(difference) <= 2**-8 * float(values[name].abs().max()), name
    assert float(sampling_differences(policy).median()) < (
        TOLERANCE if dtype == "float32" else BFLOAT16_MEDIAN
    )
