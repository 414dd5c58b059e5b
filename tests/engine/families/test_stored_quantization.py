"""Bases whose files hold quantised weights: converted when loaded, or refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_engine.config.job import ModelSource
from grpo_engine.contract.errors import ModelError
from grpo_engine.contract.events import Started
from grpo_engine.models.loading import load_base
from grpo_engine.models.quantization import load_options
from grpo_engine.rollout.sampler.vllm.base import served_base
from tests.engine.families.jobs import RESULT, engine_logprobs, merged, plain_logprobs, run, supervised
from tests.engine.families.stored import FP8, Stored, make_stored

pytestmark = pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning")
EXACT, BFLOAT16 = 1e-4, 2**-8
ROUNDED_TO_BFLOAT16 = 0.1
"""A mean: an export has the data type of the files, so a token may go to another expert."""


@pytest.fixture(scope="module", params=["gpt-oss", "qwen3", "qwen3-moe"])
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Stored]:
    """A folder, and the values of its quantised weights."""
    return make_stored(tmp_path_factory.mktemp("stored") / "base", request.param)


def source_of(folder: Path) -> ModelSource:
    return ModelSource(name="stored", path=str(folder))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loaded_weights_have_the_values_of_the_stored_ones(
    stored: tuple[Path, Stored], dtype: torch.dtype
) -> None:
    """transformers multiplies with the scales in bfloat16."""
    folder, values = stored
    loaded = load_base(source_of(folder), dtype).model.state_dict()
    assert {each.dtype for each in loaded.values()} == {dtype}
    compared = values.keys() & loaded.keys()
    assert compared
    for name in compared:
        difference = (loaded[name].float() - values[name]).abs().max()
        assert float(difference) <= BFLOAT16 * float(values[name].abs().max()), name


def test_an_adapter_is_trained_sampled_and_merged_on_the_converted_weights(
    stored: tuple[Path, Stored], tmp_path: Path
) -> None:
    folder, _ = stored
    (started, *_), policy = run(supervised(folder, tmp_path, {"rank": 2}), tmp_path / "run")
    assert isinstance(started, Started)
    stated = json.loads((folder / "config.json").read_text())["quantization_config"]["quant_method"]
    assert started.base_format == stated
    expected = engine_logprobs(policy)
    reference = engine_logprobs(policy, reference=True)
    assert float((expected - reference).abs().max()) > 1
    with served_base(policy, tmp_path) as options:
        served = plain_logprobs(Path(options["model"]))
    assert float((served - reference).abs().max()) < EXACT
    exported = merged(folder, tmp_path / "run" / RESULT / "adapter", tmp_path / "export")
    assert "quantization_config" not in (exported / "config.json").read_text()
    assert float((plain_logprobs(exported) - expected).abs().mean()) < ROUNDED_TO_BFLOAT16


def test_all_weights_are_trained_and_saved_unquantised(stored: tuple[Path, Stored], tmp_path: Path) -> None:
    folder, _ = stored
    _, policy = run(supervised(folder, tmp_path, "full"), tmp_path / "run")
    saved = plain_logprobs(tmp_path / "run" / RESULT / "model")
    assert float((saved - engine_logprobs(policy)).abs().max()) < EXACT


@pytest.mark.parametrize(
    ("config", "is_quantized_again", "reason"),
    [
        ({"quant_method": "awq", "bits": 4}, False, r"quantised \(awq\); use the unquantised model"),
        ({"quant_method": "bitsandbytes"}, False, r"quantised \(bitsandbytes\); use the unquantised model"),
        (FP8, True, r"quantised \(fp8\); set quantization to null"),
    ],
)
def test_formats_that_cannot_be_trained_are_refused(
    config: dict[str, Any], is_quantized_again: bool, reason: str, tmp_path: Path
) -> None:
    folder, _ = make_stored(tmp_path / "base", "qwen3")
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": config}))
    options = load_options("nf4", torch.float32, torch.device("cpu")) if is_quantized_again else {}
    with pytest.raises(ModelError, match=f"cannot be loaded: its weights are stored {reason}"):
        load_base(source_of(folder), torch.float32, **options)
