"""Schedule values, exact optimiser state."""

import math
from typing import Any

import pytest
import torch

from grpo_engine.config.job import SupervisedHyperparameters
from grpo_engine.contract.errors import NonFiniteError
from grpo_engine.training.optimizer import Optimizer, learning_rate_at


def settings(**fields: Any) -> SupervisedHyperparameters:
    return SupervisedHyperparameters.model_validate({"learning_rate": 1.0, **fields})


def rates(total: int, **fields: Any) -> list[float]:
    return [learning_rate_at(step, total, settings(**fields)) for step in range(1, total + 1)]


def test_warm_up_rises_to_the_peak() -> None:
    assert rates(5, warmup_steps=4) == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_a_constant_rate_stays_at_the_peak() -> None:
    assert rates(3, lr_schedule="constant") == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_decay_starts_from_the_peak_after_the_warm_up(schedule: str) -> None:
    assert rates(4, warmup_steps=2, lr_schedule=schedule) == pytest.approx([0.5, 1.0, 1.0, 0.5])


def test_linear_and_cosine_decay_from_the_peak() -> None:
    assert rates(4, lr_schedule="linear") == [1.0, 0.75, 0.5, 0.25]
    assert rates(4, lr_schedule="cosine") == pytest.approx(
        [1.0, (1 + math.cos(math.pi / 4)) / 2, 0.5, 0.1464466]
    )


def test_the_gradient_norm_is_clipped_and_reported_unclipped() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = Optimizer({"w": weight}, settings(max_grad_norm=1.0))
    weight.grad = torch.tensor([3.0, 4.0])
    assert optimizer.step(0.1, 0.0, step=1) == pytest.approx(5.0)
    moments = optimizer.state_tensors()["exp_avg/w"]
    assert torch.allclose(moments, torch.tensor([0.06, 0.08]))
    assert weight.grad is None


@pytest.mark.parametrize(
    ("gradient", "loss", "cause"), [(float("inf"), 0.0, "gradient"), (1.0, float("nan"), "loss")]
)
def test_a_non_finite_loss_or_gradient_is_refused(gradient: float, loss: float, cause: str) -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = Optimizer({"w": weight}, settings())
    weight.grad = torch.tensor([gradient])
    with pytest.raises(NonFiniteError, match=f"step 4: the {cause} is not finite"):
        optimizer.step(0.1, loss, step=4)
    assert weight.item() == 0.0


def test_only_the_parameters_that_are_at_fault_are_named_with_the_rows() -> None:
    good, bad = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))
    optimizer = Optimizer({"good": good, "bad": bad}, settings())
    good.grad, bad.grad = torch.ones(1), torch.tensor([float("nan")])
    with pytest.raises(NonFiniteError) as caught:
        optimizer.step(0.1, 0.0, step=4, rows=[3, 8])
    assert [line for line in caught.value.evidence if "gradient of" in line] == ["gradient of bad"]
    assert "dataset rows (from 0): 3, 8" in caught.value.evidence


def test_saved_moments_make_the_next_step_the_same() -> None:
    def run(split: bool) -> torch.Tensor:
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = Optimizer({"w": weight}, settings(weight_decay=0.1))
        for step in range(1, 5):
            if split and step == 3:
                saved = optimizer.state_tensors()
                optimizer = Optimizer({"w": weight}, settings(weight_decay=0.1))
                made = optimizer.new_state_tensors({name: each.dtype for name, each in saved.items()})
                for name, each in made.items():
                    each.copy_(saved[name])
            weight.grad = torch.tensor([0.1, -0.2, 0.3]) * step
            optimizer.step(0.01, 0.0, step=step)
        return weight.detach()

    assert torch.equal(run(split=True), run(split=False))
