"""The model of a training script, its adapter and its quantisation; nothing is loaded."""

from pathlib import Path

import pytest

from service.jobs.model.schemas import JobCreate
from tests.service.importing.script_samples import (
    GSM8K,
    hyperparameters,
    job_of,
    refused,
    script_of,
    script_with,
)


def test_adapter_quantisation_and_sink_of_a_script_are_in_the_job(tmp_path: Path) -> None:
    found = job_of(script_of(tmp_path, GSM8K))
    assert refused(found.lines) == {}
    settings = hyperparameters(found)
    # the dropout is PEFT's default, not that of TRL's options
    lora = {"rank": 16, "alpha": 32.0, "dropout": 0.0, "target_modules": ["q_proj", "v_proj"]}
    assert settings["lora"] == lora
    assert settings["quantization"] == "nf4"
    wandb = {"project": "gsm8k", "name": "Qwen/Qwen2.5-1.5B-Instruct-1e-05"}
    assert found.job["integrations"] == [{"type": "wandb", "wandb": wandb}]
    JobCreate.model_validate(found.job)


@pytest.mark.parametrize(
    "before",
    [
        'model = AutoModelForCausalLM.from_pretrained("tiny", torch_dtype="auto").to("cuda")',
        'loaded = AutoModelForCausalLM.from_pretrained("tiny")\nmodel = loaded.cuda().train()',
    ],
)
def test_a_model_that_the_script_moves_to_a_device_is_named(tmp_path: Path, before: str) -> None:
    before = f"from transformers import AutoModelForCausalLM\n{before}"
    script = script_of(tmp_path, script_with(before=before, model="model"))
    assert refused(script.lines) == {}
    assert script.fields["model_name_or_path"] == "tiny"


@pytest.mark.parametrize(
    ("arguments", "bits"),
    [
        ("", "nf4"),
        (", load_in_4bit=True", "nf4"),
        (", load_in_8bit=True", "int8"),
        (", load_in_16bit=True", None),
    ],
)
def test_unsloth_s_loader_quantises_to_4_bits_unless_it_is_given_others(
    tmp_path: Path, arguments: str, bits: str | None
) -> None:
    before = f"""from unsloth import FastLanguageModel
model, tokenizer = FastLanguageModel.from_pretrained(model_name="tiny", max_seq_length=512{arguments})
model = FastLanguageModel.get_peft_model(model, r=32)"""
    found = job_of(script_of(tmp_path, script_with(before=before, model="model")))
    assert found.is_whole
    assert hyperparameters(found).get("quantization") == bits
    assert "quantization" not in {
        line.to.partition(":")[0] for line in found.lines if line.verdict == "differs"
    }


def test_arguments_that_load_a_model_are_reported(tmp_path: Path) -> None:
    before = """from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("tiny", device_map="auto", rope_scaling={"factor": 4.0})"""
    script = script_of(tmp_path, script_with(before=before, model="model"))
    verdicts = {line.fields[0]: line.verdict for line in script.lines}
    assert verdicts == {"device_map": "not needed", "rope_scaling": "differs"}
    assert script.lines[0].why == "line 7: the catalogue and the operator decide how to load a model"
