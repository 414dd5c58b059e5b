"""TRL's configuration → a job: every field has a verdict, every default is honoured."""

import dataclasses
import json
import math
from typing import Any

import pytest
from trl import GRPOConfig, ModelConfig
from trl.scripts.grpo import GRPOScriptArguments

from bench.trl.equivalence_cases import CASES, Case
from service.importing import trl
from service.importing.convert import Imported, imported
from service.importing.rules import UNSET, Options, shown_value
from service.jobs.model.schemas import JobCreate

MINIMAL = {"model_name_or_path": "tiny", "dataset_name": "rows.jsonl", "reward_funcs": ["accuracy_reward"]}
THEIRS = {
    field.name: field
    for kind in (GRPOConfig, ModelConfig, GRPOScriptArguments)
    for field in dataclasses.fields(kind)
}


def of(options: Options | None = None, **fields: Any) -> Imported:
    return imported({**MINIMAL, **fields}, options or Options(), "trl")


def hyperparameters(found: Imported) -> dict[str, Any]:
    return dict(found.job["method"]["reinforcement"]["hyperparameters"])


def verdicts(found: Imported, name: str) -> set[str]:
    return {line.verdict for line in found.lines if name in line.fields}


def test_every_field_of_trl_has_a_rule() -> None:
    known = {name for rule in trl.RULES for name in rule.defaults}
    assert THEIRS.keys() - known == set()


def test_the_defaults_of_the_rules_are_trl_s() -> None:
    ours = {name: default for rule in trl.RULES for name, default in rule.defaults.items()}
    theirs = {
        name: field.default if field.default is not dataclasses.MISSING else None
        for name, field in THEIRS.items()
    }
    differing = {
        name: (ours[name], default)
        for name, default in theirs.items()
        if ours[name] is not UNSET and ours[name] != default
    }
    assert differing == {}


def test_every_stated_field_is_reported() -> None:
    """With TRL's default and with an invalid value."""
    for name, field in THEIRS.items():
        plain = MINIMAL.get(name, None if field.default is dataclasses.MISSING else field.default)
        for value in (plain, "nonsense"):
            assert verdicts(of(**{name: value}), name), f"{name}: {value} is not in the report"


def test_invalid_values_are_never_reported_as_not_needed() -> None:
    """All options that a field depends on are switched on."""
    held_out = Options(validation_data="held_out.jsonl")
    on = {"use_peft": True, "use_vllm": True, "beta": 0.1, "loss_type": "sapo", "eval_strategy": "steps"}
    on |= {"load_in_4bit": True}
    matters = {name for rule in trl.RULES for name, default in rule.defaults.items() if default is not UNSET}
    matters -= {name for name, field in THEIRS.items() if isinstance(field.default, bool)}
    silent = {
        name
        for name in matters & THEIRS.keys()
        if verdicts(of(held_out, **{**on, name: "nonsense"}), name) <= {"not needed"}
    }
    assert silent == set()


def test_the_job_contains_trl_s_defaults() -> None:
    found = of()
    assert found.is_whole
    job = JobCreate.model_validate(found.job)
    assert job.seed == 42
    settings = job.method.reinforcement.hyperparameters  # type: ignore[union-attr]
    expected = {
        "group_size": 8, "prompts_per_step": 1, "beta": 0.0, "epsilon_low": 0.2, "epsilon_high": 0.2,
        "loss_type": "dapo", "advantage": "group_std", "temperature": 1.0, "max_completion_tokens": 512,
        "learning_rate": 1e-6, "lr_schedule": "linear", "n_epochs": 3, "num_iterations": 1, "lora": "full",
        "weight_decay": 0.0, "max_grad_norm": 1.0, "mask_truncated_completions": False, "warmup_steps": 0,
    }  # fmt: skip
    assert {name: getattr(settings, name) for name in expected} == expected


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{case.beta}-{case.full}")
def test_the_job_uses_the_settings_of_the_equivalence_tests(case: Case) -> None:
    theirs = {"beta": case.beta, "num_iterations": case.iterations, "use_peft": not case.full, **case.theirs}
    written = hyperparameters(of(**theirs))
    expected = {**case.ours, "beta": case.beta, "num_iterations": case.iterations}
    if case.beta and "kl_ratio_weight" not in expected:
        expected |= {"kl_ratio_weight": True, "train_groups_without_signal": True}
    assert {name: written.get(name) for name in expected} == expected
    assert (written["lora"] == "full") is case.full


@pytest.mark.parametrize(
    ("given", "processes", "prompts"),
    [
        ({"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4}, 1, 4),
        ({"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4}, 2, 8),
        ({"per_device_train_batch_size": 4, "num_generations": 4, "gradient_accumulation_steps": 3}, 1, 3),
    ],
)
def test_prompts_per_step_are_completions_divided_by_group_size(
    given: dict[str, int], processes: int, prompts: int
) -> None:
    found = of(Options(num_processes=processes), **given)
    assert hyperparameters(found)["prompts_per_step"] == prompts
    assert verdicts(found, "per_device_train_batch_size") == {"maps"}


def test_a_generation_for_several_steps_is_reported_as_a_difference() -> None:
    found = of(per_device_train_batch_size=8, gradient_accumulation_steps=2, steps_per_generation=8)
    assert hyperparameters(found)["prompts_per_step"] == 2
    (line,) = [line for line in found.lines if "steps_per_generation" in line.fields]
    assert line.verdict == "differs"
    assert line.why == (
        "TRL draws 64 completions and trains on them in 4 steps, the later ones off-policy; "
        "here every step draws its own"
    )


def test_a_batch_of_incomplete_groups_is_refused() -> None:
    found = of(per_device_train_batch_size=6)
    assert verdicts(found, "per_device_train_batch_size") == {"refused"}
    assert not found.is_whole


def test_optimiser_steps_are_converted_to_steps() -> None:
    found = hyperparameters(of(max_steps=100, num_iterations=4, warmup_steps=8, save_steps=40))
    assert (found["n_steps"], found["num_iterations"], found["warmup_steps"]) == (25, 4, 2)
    assert found["checkpoint_interval"] == 10


def test_a_warm_up_fraction_needs_the_number_of_steps() -> None:
    assert hyperparameters(of(max_steps=200, warmup_steps=0.1))["warmup_steps"] == 20
    known = Options(data="rows.jsonl", num_rows=100)
    assert hyperparameters(of(known, warmup_steps=0.1))["warmup_steps"] == 30
    assert verdicts(of(warmup_steps=0.1), "warmup_steps") == {"refused"}


def test_warmup_ratio_works_and_warmup_steps_take_precedence() -> None:
    assert hyperparameters(of(max_steps=200, warmup_ratio=0.1))["warmup_steps"] == 20
    assert hyperparameters(of(max_steps=200, warmup_ratio=0.1, warmup_steps=5))["warmup_steps"] == 5
    assert verdicts(of(warmup_ratio=0.1), "warmup_ratio") == {"refused"}


REFUSED = {
    "top_p": 0.9,
    "top_k": 50,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "loss_type": "vespo",
    "importance_sampling_level": "sequence",
    "sync_ref_model": True,
    "use_dora": True,
    "scale_rewards": "batches",
    "optim": "adafactor",
    "num_train_epochs": 0.5,
    "max_steps": float("inf"),
    "top_entropy_quantile": 0,
    "lr_scheduler_type": "polynomial",
    "model_name_or_path": "/models/mine",
    "learning_rate": "fast",
}


@pytest.mark.parametrize(("field", "value"), REFUSED.items())
def test_unsupported_values_are_refused_with_their_field(field: str, value: object) -> None:
    found = of(**{field: value})
    refused = [line for line in found.lines if line.verdict == "refused"]
    assert refused
    assert all(line.why for line in refused)
    assert {field} & {name for line in refused for name in line.fields}


def test_an_unknown_field_is_reported_and_ignored() -> None:
    found = of(num_generatoins=4)
    assert verdicts(found, "num_generatoins") == {"unknown"}
    (line,) = (line for line in found.lines if line.verdict == "unknown")
    assert line.why == "unknown field; did you mean num_generations?"
    assert not found.is_whole
    assert found.job == of().job


def test_numbers_that_yaml_reads_as_text_are_converted() -> None:
    assert hyperparameters(of(learning_rate="1e-5"))["learning_rate"] == 1e-5


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, "1e999"])
def test_a_number_that_json_does_not_have_is_refused(value: object) -> None:
    found = of(learning_rate=value)
    (line,) = (line for line in found.lines if "learning_rate" in line.fields)
    assert (line.verdict, line.why) == ("refused", "a finite number is needed")
    json.dumps([found.job, [line.document() for line in found.lines]], allow_nan=False)


def test_a_quantised_base_becomes_quantization() -> None:
    four = of(use_peft=True, load_in_4bit=True, use_bnb_nested_quant=True)
    assert (hyperparameters(four)["quantization"], verdicts(four, "load_in_4bit")) == ("nf4", {"maps"})
    single = of(use_peft=True, load_in_4bit=True)
    assert (hyperparameters(single)["quantization"], verdicts(single, "load_in_4bit")) == ("nf4", {"differs"})
    assert hyperparameters(of(use_peft=True, load_in_8bit=True))["quantization"] == "int8"
    assert "quantization" not in hyperparameters(of(use_peft=True))


def test_fp4_and_quantised_weights_without_an_adapter_are_refused() -> None:
    fp4 = of(use_peft=True, load_in_4bit=True, bnb_4bit_quant_type="fp4")
    (line,) = [line for line in fp4.lines if line.verdict == "refused"]
    assert line.fields == ("bnb_4bit_quant_type",)
    assert "must be nf4" in line.why
    assert verdicts(of(load_in_4bit=True), "load_in_4bit") == {"refused"}


def test_an_adapter_has_peft_s_defaults() -> None:
    found = of(use_peft=True, lora_r=32, lora_alpha=64)
    lora = {"rank": 32, "alpha": 64.0, "dropout": 0.05, "target_modules": ["q_proj", "v_proj"]}
    assert hyperparameters(found)["lora"] == lora
    assert verdicts(found, "lora_target_modules") == {"differs"}
    for every in ("all-linear", ["all-linear"]):
        given = hyperparameters(of(use_peft=True, lora_target_modules=every))
        assert given["lora"]["target_modules"] == "all-linear"


def test_vllm_s_probabilities_are_corrected_as_in_trl() -> None:
    found = hyperparameters(of(use_vllm=True))
    assert (found["importance_correction"], found["importance_cap"]) == ("sequence_mask", 3.0)
    assert "importance_correction" not in hyperparameters(of())


def test_secrets_are_not_in_the_report() -> None:
    found = of(hub_token="hf_very_secret", push_to_hub=True, env={"HF_TOKEN": "hf_very_secret"})
    assert verdicts(found, "hub_token") == {"not needed"}
    assert "hf_very_secret" not in str([line.document() for line in found.lines])


def test_the_report_shows_special_tokens() -> None:
    given = {"special_tokens": {"pad_token": "<pad>"}, "tokenizer_type": "AutoTokenizer"}
    assert {name: shown_value(name, value) for name, value in given.items()} == given
    assert shown_value("env", {"HF_TOKEN": "hf_1", "api_token": "2"}) == {"HF_TOKEN": "…", "api_token": "…"}


def test_secrets_inside_lists_are_not_in_the_report() -> None:
    found = of(servers=[{"url": "https://a", "api_key": "sk-1"}], env=({"HF_TOKEN": ["hf_1"]},))
    report = str([line.document() for line in found.lines])
    assert "https://a" in report
    assert "sk-1" not in report
    assert "hf_1" not in report


@pytest.mark.parametrize(
    ("given", "sinks"),
    [
        ({"report_to": "tensorboard"}, [{"type": "tensorboard"}]),
        ({"report_to": ["mlflow", "wandb"], "run_name": "a"},
         [{"type": "wandb", "wandb": {"project": "huggingface", "name": "a"}}, {"type": "mlflow"}]),
        ({"report_to": "wandb", "project": "sums"}, [{"type": "wandb", "wandb": {"project": "sums"}}]),
        ({"report_to": "none"}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_report_to_becomes_the_job_s_sinks(given: dict[str, Any], sinks: object) -> None:
    found = of(**given)
    assert found.job.get("integrations") == sinks
    assert JobCreate.model_validate(found.job)


def test_a_tracker_without_a_sink_is_reported() -> None:
    found = of(report_to=["trackio", "tensorboard"])
    assert found.job["integrations"] == [{"type": "tensorboard"}]
    (line,) = [line for line in found.lines if "report_to" in line.fields]
    assert (line.verdict, "there is no sink for trackio" in line.why) == ("differs", True)
    assert verdicts(of(report_to="trackio"), "report_to") == {"differs"}
