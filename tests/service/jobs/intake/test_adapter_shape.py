"""The shape of a continued adapter is inherited, and another shape is refused."""

from typing import Any

import pytest

from grpo_engine.config.hyperparameters import Lora
from grpo_engine.config.job import Supervised, hyperparameters_of
from service.jobs.intake.adapter_shape import with_adapter_shape
from service.jobs.intake.checks.method import check_quantization
from service.jobs.intake.model_size import Matrix, ModelShape
from service.jobs.intake.report import Report
from service.jobs.model.dataset import Problems

PARENT = {"rank": 4, "alpha": 8, "dropout": 0.1, "target_modules": ["q_proj", "v_proj"]}
SHAPE = Lora(rank=4, alpha=8, dropout=0.1, target_modules=("q_proj", "v_proj"))


def method(lora: Any = None) -> Supervised:
    return Supervised.model_validate(
        {"type": "supervised", "supervised": {"hyperparameters": {"lora": lora} if lora else {}}}
    )


def shape_of(lora: Any, problems: Problems) -> Any:
    """Of a job with this `lora` on the parent's adapter."""
    return hyperparameters_of(with_adapter_shape(method(lora), method(PARENT), problems)).lora


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("rank", 8, "is 8, but the model's adapter has rank 4"),
        ("alpha", 16, "is 16.0, but the model's adapter has alpha 8.0"),
        ("dropout", 0.0, "is 0.0, but the model's adapter has dropout 0.1"),
        ("target_modules", "all-linear", "is all-linear, but the model's adapter has target_modules"),
    ],
)
def test_another_shape_than_the_inherited_one_is_a_problem_at_its_field(
    name: str, value: object, reason: str
) -> None:
    problems = Problems()
    shape_of({name: value}, problems)
    (problem,) = problems.found
    assert problem.param == f"method.supervised.hyperparameters.lora.{name}"
    assert problem.code == "invalid_value"
    assert reason in problem.message


@pytest.mark.parametrize("lora", [None, {"rank": 4}, {"alpha": 8}, PARENT])
def test_missing_fields_are_inherited(lora: Any) -> None:
    problems = Problems()
    assert shape_of(lora, problems) == SHAPE
    assert problems.found == []


def test_all_weights_after_an_adapter_are_not_a_contradiction() -> None:
    problems = Problems()
    assert shape_of("full", problems) == "full"
    assert problems.found == []


def quantized(kind: str | None) -> Supervised:
    given = {"hyperparameters": {"quantization": kind, "lora": {}}}
    return Supervised.model_validate({"type": "supervised", "supervised": given})


def test_another_quantisation_than_the_parent_s_is_a_warning() -> None:
    other, same = Report(quantized(None)), Report(quantized("nf4"))
    check_quantization(other, quantized("nf4"))
    (found,) = other.warnings
    assert found["code"] == "quantization_differs"
    assert found["message"].startswith("quantization is null, but nf4 in the job that this one continues.")
    check_quantization(same, quantized("nf4"))
    assert same.warnings == []


def test_experts_that_stay_unquantised_are_a_warning() -> None:
    expert = Matrix("layers.0.mlp.experts.3.up_proj.weight", 64, 64)
    shape = ModelShape(4096, 1, 64, 64, 64, 100, (expert,))
    report = Report(quantized("nf4"), shape=shape)
    check_quantization(report, None)
    assert [each["code"] for each in report.warnings] == ["experts_not_quantized"]
    assert shape.weight_bytes(2, "nf4") == 2 * 4096
