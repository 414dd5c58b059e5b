"""Vision-language models: the language model inside is trained on text, or the model is refused."""

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING as CAUSAL

from grpo_engine.config.job import ModelSource
from grpo_engine.contract.errors import ModelError
from grpo_engine.models.loading import load_base
from service.jobs.intake.checks.model import LANGUAGE_PART_LOADS
from tests.engine.families.jobs import IDS, RESULT, engine_logprobs, merged, plain_logprobs, run, supervised
from tests.engine.families.wrappers import make_wrapper


def whole_logprobs(base: Path, adapter: Path) -> torch.Tensor:
    """Log-probabilities of `IDS` by PEFT on the whole vision-language model."""
    whole = PeftModel.from_pretrained(AutoModelForImageTextToText.from_pretrained(base), str(adapter))
    ids = torch.tensor([IDS])
    with torch.no_grad():
        logprobs = whole(input_ids=ids).logits[0, :-1].log_softmax(-1)
    return logprobs.gather(1, ids[0, 1:, None]).squeeze(1)


def test_an_adapter_loads_on_the_language_model_and_on_the_whole(tmp_path: Path) -> None:
    base, adapter = make_wrapper(tmp_path / "base", "Qwen3_5Config"), tmp_path / "run" / RESULT / "adapter"
    config = supervised(base, tmp_path, {"rank": 4})
    _, policy = run(config, tmp_path / "run")
    expected = engine_logprobs(policy)
    assert float((expected - plain_logprobs(base)).abs().max()) > 0.05
    found = (
        plain_logprobs(base, adapter),
        whole_logprobs(base, adapter),
        plain_logprobs(merged(base, adapter, tmp_path / "export")),
    )
    assert all(float((expected - each).abs().max()) < 1e-4 for each in found)

    source = config.model.model_copy(update={"adapter": str(adapter)})
    _, continued = run(config.model_copy(update={"model": source}), tmp_path / "continued")
    again = tmp_path / "continued" / RESULT / "adapter"
    assert float((engine_logprobs(continued) - expected).abs().max()) > 0.05
    assert float((engine_logprobs(continued) - whole_logprobs(base, again)).abs().max()) < 1e-4


def test_all_weights_of_the_language_model_are_trained_and_saved_alone(tmp_path: Path) -> None:
    base = make_wrapper(tmp_path / "base", "Qwen3_5Config")
    _, policy = run(supervised(base, tmp_path, "full"), tmp_path / "run")
    expected = engine_logprobs(policy)
    assert float((expected - plain_logprobs(base)).abs().max()) > 0.02
    assert float((expected - plain_logprobs(tmp_path / "run" / RESULT / "model")).abs().max()) < 1e-4


@pytest.mark.parametrize("kind", ["Gemma3Config", "Qwen3VLConfig", "Mistral3Config"])
def test_a_model_whose_language_model_does_not_load_alone_is_refused(kind: str, tmp_path: Path) -> None:
    source = ModelSource(name="seeing", path=str(make_wrapper(tmp_path, kind)))
    with pytest.raises(
        ModelError, match=r"seeing \(\w+\) is a vision-language model, and transformers does not"
    ):
        load_base(source, torch.float32)


def test_the_service_refuses_what_the_engine_refuses() -> None:
    for name in sorted({*LANGUAGE_PART_LOADS, "gemma3", "qwen3_vl", "mistral3"}):
        kind = CONFIG_MAPPING[name]
        loads = kind in CAUSAL and CAUSAL[kind].config_class is not kind
        assert loads == (name in LANGUAGE_PART_LOADS), name
