"""The configuration: ranges, other systems' names, recipes, and that expanding twice changes nothing."""

from typing import Any

import pytest
from pydantic import ValidationError

from grpo_engine.config.job import (
    ReinforcementHyperparameters,
    ReinforcementMethod,
    RunConfig,
    SupervisedHyperparameters,
)
from grpo_engine.config.training_free import TrainingFreeHyperparameters, TrainingFreeMethod
from grpo_engine.contract.records import Input


def parse(**fields: Any) -> ReinforcementHyperparameters:
    return ReinforcementHyperparameters.model_validate(fields)


@pytest.mark.parametrize("method", [ReinforcementHyperparameters, TrainingFreeHyperparameters])
def test_a_temperature_by_which_no_logit_can_be_divided_is_refused(method: type[Input]) -> None:
    with pytest.raises(ValidationError, match="greater than or equal to"):
        method.model_validate({"temperature": 1e-300})
    assert method.model_validate({"temperature": 0.001}).model_dump()["temperature"] == 0.001


def test_quantised_weights_are_not_trained_themselves() -> None:
    assert parse(quantization="nf4").quantization == "nf4"
    with pytest.raises(ValidationError, match='must be null with lora "full"') as error:
        parse(quantization="nf4", lora="full")
    assert error.value.errors()[0]["ctx"]["place"] == ("quantization",)


OWN = {"type": "string_check", "operation": "eq", "input": "a", "reference": "a"}
ENVIRONMENTS = {"type": "environment"}


@pytest.mark.parametrize(
    ("method", "fields", "place"),
    [
        (ReinforcementMethod, {"grader": ENVIRONMENTS}, ("grader",)),
        (ReinforcementMethod, {"grader": OWN, "eval_grader": ENVIRONMENTS}, ("eval_grader",)),
        (
            ReinforcementMethod,
            {"grader": OWN, "retention": [{"name": "old", "file": "file-1", "grader": ENVIRONMENTS}]},
            ("retention", 0, "grader"),
        ),
        (TrainingFreeMethod, {"grader": ENVIRONMENTS}, ("grader",)),
        (TrainingFreeMethod, {"grader": OWN, "eval_grader": ENVIRONMENTS}, ("eval_grader",)),
    ],
)
def test_without_environments_no_grader_needs_their_reward(
    method: type[Input], fields: dict[str, Any], place: tuple[Any, ...]
) -> None:
    with pytest.raises(ValidationError, match="needs a job with environments") as error:
        method.model_validate(fields)
    assert error.value.errors()[0]["ctx"]["place"] == place


def test_an_agent_which_writes_its_own_prompts_cannot_be_distilled() -> None:
    hyperparameters = {"self_distillation": {}}

    def method(**environment: Any) -> dict[str, Any]:
        return {"environments": {"own": environment}, "hyperparameters": hyperparameters}

    assert ReinforcementMethod.model_validate(method(type="openenv", url="https://environment.example"))
    with pytest.raises(ValidationError, match="an agent writes its own prompts") as error:
        ReinforcementMethod.model_validate(method(type="agent", url="https://agent.example"))
    assert error.value.errors()[0]["ctx"]["place"] == ("hyperparameters", "self_distillation")


def test_the_defaults_are_as_designed() -> None:
    found = parse()
    assert (found.group_size, found.beta, found.epsilon_low, found.epsilon_high) == (8, 0.04, 0.2, 0.2)
    assert (found.temperature, found.learning_rate, found.max_grad_norm) == (1.0, 1e-5, 1.0)
    assert (found.loss_type, found.advantage, found.advantage_ddof) == ("grpo", "group_std", 1)


@pytest.mark.parametrize(
    ("alias", "name", "value"),
    [
        ("num_generations", "group_size", 4),
        ("kl_beta", "beta", 0.5),
        ("max_completion_length", "max_completion_tokens", 9),
        ("num_prompts_per_step", "prompts_per_step", 3),
    ],
)
def test_other_systems_names_become_ours(alias: str, name: str, value: Any) -> None:
    assert getattr(parse(**{alias: value}), name) == value


def test_an_alias_that_contradicts_our_name_is_refused() -> None:
    with pytest.raises(ValidationError, match="num_generations is another name of group_size"):
        parse(num_generations=4, group_size=8)


def test_epsilon_sets_both_bounds_and_lora_r_the_rank() -> None:
    found = parse(epsilon=0.1, lora_r=4, lora_alpha=8)
    assert (found.epsilon_low, found.epsilon_high) == (0.1, 0.1)
    assert found.lora is not None
    assert found.lora != "full"
    assert (found.lora.rank, found.lora.alpha) == (4, 8)


def test_a_recipe_sets_only_fields_that_the_job_leaves_out() -> None:
    assert (parse(recipe="dapo").epsilon_high, parse(recipe="dapo").loss_type) == (0.28, "dapo")
    assert parse(recipe="dapo", epsilon_high=0.5).epsilon_high == 0.5
    assert (parse(recipe="dr_grpo").advantage, parse(recipe="dr_grpo").beta) == ("mean_only", 0.0)


RECIPES = ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "sapo", "rloo", "reinforce_plus_plus")


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ("grpo", {"loss_type": "grpo", "advantage": "group_std", "beta": 0.04}),
        ("dr_grpo", {"loss_type": "dr_grpo", "advantage": "mean_only", "beta": 0.0}),
        ("dapo", {"loss_type": "dapo", "dynamic_sampling": 3, "mask_truncated_completions": True}),
        ("gspo", {"loss_type": "gspo", "epsilon_low": 3e-4, "epsilon_high": 4e-4}),
        ("cispo", {"loss_type": "cispo", "epsilon_high": 5.0}),
        ("sapo", {"sapo_temperature_positive": 1.0, "sapo_temperature_negative": 1.05}),
        ("rloo", {"loss_type": "reinforce", "advantage": "leave_one_out", "kl_placement": "reward"}),
        ("reinforce_plus_plus", {"advantage": "reinforce_plus_plus", "kl_estimator": "k2"}),
    ],
)
def test_a_recipe_expands_to_a_visible_configuration(recipe: str, expected: dict[str, Any]) -> None:
    assert parse(recipe=recipe).model_dump().items() >= expected.items()


@pytest.mark.parametrize(("loss_type", "high"), [("gspo", 4e-4), ("cispo", 5.0), ("dapo", 0.2)])
def test_a_loss_sets_its_own_clip_range_unless_the_job_does(loss_type: str, high: float) -> None:
    assert parse(loss_type=loss_type).epsilon_high == high
    assert parse(loss_type=loss_type, epsilon_high=2.0).epsilon_high == 2.0


@pytest.mark.parametrize(
    "fields",
    [
        *({"recipe": recipe} for recipe in RECIPES),
        {},
        {"recipe": "dapo", "learning_rate_multiplier": 2, "compute_multiplier": 2},
        {"epsilon": 0.3, "batch_size": 16, "lora": "full"},
        {"n_epochs": 3, "lora_rank": 8},
    ],
)
def test_expanding_an_expanded_configuration_changes_nothing(fields: dict[str, Any]) -> None:
    once = parse(**fields)
    assert ReinforcementHyperparameters.model_validate(once.model_dump()) == once


def test_openais_multipliers_scale_our_defaults() -> None:
    found = parse(learning_rate_multiplier=2, compute_multiplier=2, batch_size=16)
    assert (found.learning_rate, found.group_size, found.prompts_per_step) == (2e-5, 16, 16)


@pytest.mark.parametrize(
    "fields",
    [
        {"group_size": 1},
        {"batch_size": 10**400},
        {"learning_rate_multiplier": 10**400},
        {"compute_multiplier": 1e308},
        {"beta": -0.1},
        {"temperature": 0},
        {"epsilon_low": 1.0},
        {"learning_rate": 0},
        {"learning_rate": float("nan")},
        {"unknown": 1},
        {"group_size": "eight"},
        {"lora": {"rank": 0}},
        {"batch_size": 4, "prompts_per_step": 8},
        {"n_epochs": 2, "n_steps": 10},
        {"learning_rate": 1e-3, "learning_rate_multiplier": 2},
        {"loss_type": "luspo"},
        {"recipe": "nope"},
        {"delta": 1.0},
        {"top_entropy_quantile": 0.0},
        {"beta": 0.0, "kl_target": 0.1},
        {"max_completion_tokens": 8, "overlong_buffer_tokens": 9},
        {"self_distillation": {"alone": True}},
        {"self_distillation": {"template": "no placeholders"}},
    ],
)
def test_configurations_that_cannot_run_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        parse(**fields)


@pytest.mark.parametrize("fields", [{"top_p": 0.9}, {"top_k": 5}])
def test_a_truncated_support_is_refused_with_the_reason(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="biases every ratio"):
        parse(**fields)


def test_full_fine_tuning_has_a_ten_times_lower_default_learning_rate() -> None:
    assert parse(lora="full").learning_rate == pytest.approx(parse().learning_rate / 10)


def test_the_number_of_steps_follows_from_epochs_and_rows() -> None:
    assert parse(n_epochs=3, prompts_per_step=8).total_steps(20) == 8
    assert parse(n_steps=5).total_steps(1_000_000) == 5
    assert SupervisedHyperparameters.model_validate({"batch_size": 32}).total_steps(33) == 2


def test_a_run_configuration_round_trips_through_json() -> None:
    config = RunConfig.model_validate(
        {
            "job_id": "ftjob-1",
            "model": {"name": "m", "path": "p"},
            "training_file": "t",
            "method": {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2}}},
        }
    )
    assert RunConfig.model_validate_json(config.model_dump_json()) == config
