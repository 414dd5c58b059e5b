"""Vision-language models: the language model inside is trained on text, or the model is refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForImageTextToText

from grpo_engine.config.job import ModelSource
from grpo_engine.contract.errors import ModelError
from grpo_engine.models.loading import load_base
from tests.engine.families.jobs import IDS, RESULT, engine_logprobs, merged, plain_logprobs, run, supervised
from tests.engine.families.wrappers import WRAPPERS, make_wrapper

LOADED = [kind for kind in WRAPPERS if kind != "LlavaConfig"]
TOLERANCE = 1e-4
pytestmark = [
    # peft, on targets of fused experts that it names itself
    pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning"),
]


def largest_difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())


def whole_logprobs(base: Path, adapter: Path | None = None) -> torch.Tensor:
    """Log-probabilities of `IDS` by the whole vision-language model, with an adapter by PEFT."""
    whole = AutoModelForImageTextToText.from_pretrained(base)
    if adapter is not None:
        whole = PeftModel.from_pretrained(whole, str(adapter))
    ids = torch.tensor([IDS])
    with torch.no_grad():
        logprobs = whole(input_ids=ids).logits[0, :-1].log_softmax(-1)
    return logprobs.gather(1, ids[0, 1:, None]).squeeze(1)


@pytest.mark.parametrize("kind", LOADED)
def test_an_adapter_loads_on_the_language_model_and_on_the_whole(kind: str, tmp_path: Path) -> None:
    base, adapter = make_wrapper(tmp_path / "base", kind), tmp_path / "run" / RESULT / "adapter"
    config = supervised(base, tmp_path, {"rank": 4})
    _, policy = run(config, tmp_path / "run")
    expected, before = engine_logprobs(policy), engine_logprobs(policy, reference=True)
    assert largest_difference(before, whole_logprobs(base)) < TOLERANCE
    assert largest_difference(expected, before) > 0.05
    assert largest_difference(expected, whole_logprobs(base, adapter)) < TOLERANCE
    assert (
        largest_difference(expected, plain_logprobs(merged(base, adapter, tmp_path / "export"))) < TOLERANCE
    )

    source = config.model.model_copy(update={"adapter": str(adapter)})
    _, continued = run(config.model_copy(update={"model": source}), tmp_path / "continued")
    again = tmp_path / "continued" / RESULT / "adapter"
    assert largest_difference(engine_logprobs(continued), expected) > 0.05
    assert largest_difference(engine_logprobs(continued), whole_logprobs(base, again)) < TOLERANCE


@pytest.mark.parametrize("kind", ["Gemma3Config", "Qwen3VLConfig", "Qwen3_5Config"])
def test_all_weights_of_the_language_model_are_trained_and_saved_alone(kind: str, tmp_path: Path) -> None:
    base = make_wrapper(tmp_path / "base", kind)
    _, policy = run(supervised(base, tmp_path, "full"), tmp_path / "run")
    expected = engine_logprobs(policy)
    assert largest_difference(expected, whole_logprobs(base)) > 0.02
    assert largest_difference(expected, plain_logprobs(tmp_path / "run" / RESULT / "model")) < TOLERANCE


def test_a_model_whose_language_model_does_not_load_alone_is_refused(tmp_path: Path) -> None:
    source = ModelSource(name="seeing", path=str(make_wrapper(tmp_path, "LlavaConfig")))
    expected = r"seeing \(llava\) is a vision-language model whose language model cannot be loaded alone"
    with pytest.raises(ModelError, match=expected):
        load_base(source, torch.float32)


def test_no_table_of_the_weights_that_a_job_leaves_out_is_printed(tmp_path: Path) -> None:
    base = make_wrapper(tmp_path, "Gemma3Config")
    command = [sys.executable, "-m", "grpo_engine.run.model_check", "--path", base]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["warnings"] == []
    assert "Loading weights" in done.stderr
    assert "vision_tower" not in done.stderr
