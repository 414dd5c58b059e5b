"""The update does not depend on how a step is cut: micro-batches, packing, shared prompts, order."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_engine.config.job import RunConfig
from grpo_engine.models import policy as policy_module
from grpo_engine.objective.packing import TrainingGroup, TrainingSequence, pack
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.training.gradients import PolicyGradient
from tests.engine.conftest import cut, largest_difference, parameters_of
from tests.engine.injection import CPU, Groups, after_steps, injected_trainer, random_steps

TOLERANCE = 1e-6
LOSSES = ("grpo", "dapo", "dr_grpo", "bnpo", "gspo", "cispo", "sapo", "reinforce")
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two_iterations": {"num_iterations": 2, "beta": 0.1, "kl_ratio_weight": True},
    "entropy": {"top_entropy_quantile": 0.2, "entropy_coef": 0.01},
    "kl_by_sequence": {"beta": 0.1, "kl_placement": "loss_sequence"},
    "kl_in_reward": {"beta": 0.1, "kl_placement": "reward"},
}
CASES = [
    *((loss_type, "two_iterations") for loss_type in LOSSES),
    *(("grpo", variant) for variant in ("plain", "entropy")),
    ("gspo", "entropy"),
    ("dapo", "kl_in_reward"),
    ("bnpo", "kl_by_sequence"),
]
"""Every loss with moved ratios and a KL term; every variant with a loss that it may disturb."""
STEPS = random_steps(3, 4, 4)


def job(make_config: Callable[..., RunConfig], **hyperparameters: Any) -> RunConfig:
    """Steps of 1e-4. Adam's ε keeps weights still whose gradient is nothing but rounding."""
    settings = {"learning_rate": 1e-4, "adam_epsilon": 1e-6, "max_completion_tokens": 12, "beta": 0.0}
    return make_config(**{**settings, **hyperparameters})


def shuffled(steps: Sequence[Groups]) -> list[Groups]:
    """The same groups and completions in another order."""
    order = random.Random(1)
    mixed = [[(prompt, order.sample(list(given), len(given))) for prompt, given in step] for step in steps]
    return [order.sample(step, len(step)) for step in mixed]


def micro_batches(config: RunConfig, budget: int) -> int:
    """Of the first step."""
    counted: list[int] = []

    class Counting(PolicyGradient):
        def __call__(self, token_budget: int) -> dict[str, float]:
            counted.append(len(list(pack(self.groups, token_budget, CPU))))
            return super().__call__(token_budget)

    trainer = injected_trainer(cut(config, token_budget=budget), STEPS)
    terms = trainer._terms
    trainer._terms = lambda scored: [_as(Counting, term) for term in terms(scored)]  # type: ignore[method-assign]
    list(trainer.step(1))
    return counted[0]


def _as(kind: type[PolicyGradient], term: Any) -> PolicyGradient:
    term.__class__ = kind
    return term  # type: ignore[no-any-return]


def test_the_budgets_of_these_tests_make_1_2_and_8_or_more_micro_batches(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = job(make_config)
    found = [micro_batches(config, budget) for budget in (10_000, 60, 16)]
    assert found[:2] == [1, 2]
    assert found[2] >= 8


def test_the_tolerance_is_far_below_the_change_of_three_steps(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = job(make_config)
    start, _ = after_steps(config, [])
    found, _ = after_steps(config, STEPS)
    assert largest_difference(start, found) > 200 * TOLERANCE


@pytest.mark.parametrize(("loss_type", "variant"), CASES)
def test_two_steps_are_the_same_however_they_are_cut(
    make_config: Callable[..., RunConfig], tmp_path: Path, loss_type: str, variant: str
) -> None:
    config = job(make_config, loss_type=loss_type, **VARIANTS[variant])
    whole, metrics = after_steps(config, STEPS[:2])
    pieces = cut(config, token_budget=16), cut(config, token_budget=60)
    others = {
        "many micro-batches, shuffled": after_steps(pieces[0], shuffled(STEPS[:2])),
        "two micro-batches, prompts not shared": after_steps(pieces[1], STEPS[:2], shares_prompts=False),
    }
    for parameters, other in others.values():
        assert largest_difference(whole, parameters) <= TOLERANCE
        for name in ("loss", "grad_norm", "entropy", "clip_ratio/region_mean", "kl"):
            assert other.get(name, 0.0) == pytest.approx(metrics.get(name, 0.0), abs=2e-6, rel=1e-5)


@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
def test_all_weights_too_are_the_same_however_they_are_cut(
    make_config: Callable[..., RunConfig], tmp_path: Path, loss_type: str
) -> None:
    config = job(make_config, loss_type=loss_type, lora="full", beta=0.1, learning_rate=2e-5)
    whole, _ = after_steps(config, STEPS)
    pieces, _ = after_steps(cut(config, token_budget=16), shuffled(STEPS))
    plain, _ = after_steps(config, STEPS, shares_prompts=False)
    assert largest_difference(whole, pieces) <= TOLERANCE
    assert largest_difference(whole, plain) <= TOLERANCE


FORWARDS = ("fast_states", "packed_states", "padded_logits")
"""Our kernels; the model's own layers around our attention; its own forward over padded rows."""


def after_steps_by(
    forward: str, config: RunConfig, steps: Sequence[Groups]
) -> tuple[dict[str, torch.Tensor], int]:
    """Parameters after the steps by one way to run the model, and its passes; another way would fail."""
    trainer = injected_trainer(config, steps)
    assert trainer.policy.fast is not None
    if forward != "fast_states":
        trainer.policy.fast = None
        trainer.policy.shares_prompts = forward == "packed_states"
    calls = []
    run = getattr(policy_module, forward)

    def counted(*arguments: Any) -> torch.Tensor:
        calls.append(1)
        return run(*arguments)  # type: ignore[no-any-return]

    with pytest.MonkeyPatch.context() as patch:
        for name in FORWARDS:
            patch.setattr(policy_module, name, counted if name == forward else None)
        for step in range(1, len(steps) + 1):
            list(trainer.step(step))
    return parameters_of(trainer), len(calls)


@pytest.mark.parametrize("lora", [{"rank": 4}, "full"], ids=["adapter", "all weights"])
def test_three_steps_are_the_same_by_every_forward_however_they_are_cut(
    make_config: Callable[..., RunConfig], tmp_path: Path, lora: Any
) -> None:
    config = job(make_config, loss_type="dapo", lora=lora, learning_rate=2e-5 if lora == "full" else 1e-4)
    whole, passes = after_steps_by("fast_states", config, STEPS)
    assert passes == 3
    for forward in FORWARDS:
        for budget in (10_000, 60, 16):
            pieces = cut(config, token_budget=budget)
            found, passes = after_steps_by(forward, pieces, shuffled(STEPS))
            assert passes >= {10_000: 3, 60: 6, 16: 20}[budget]
            assert largest_difference(whole, found) <= TOLERANCE, (forward, budget)


def groups_of(*sizes: int) -> list[TrainingGroup]:
    return [TrainingGroup((1,), (TrainingSequence((2,) * n, (0.0,) * n, (1.0,) * n, 1.0),)) for n in sizes]


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_every_group_has_exactly_one_rank_and_the_loads_are_near(world: int) -> None:
    groups = groups_of(9, 1, 4, 4, 7, 2)
    shares = [Ranks(rank, world).share(groups) for rank in range(world)]
    assert sorted(g.num_tokens for share in shares for g in share) == sorted(g.num_tokens for g in groups)
    loads = [sum(group.num_tokens for group in share) for share in shares]
    assert max(loads) - min(loads) <= max(group.num_tokens for group in groups)


def test_one_rank_is_the_current_one_and_changes_nothing() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    ranks = Ranks.current()
    assert ranks == Ranks(0, 1)
    ranks.reduce([parameter])
    assert parameter.grad is None
    assert ranks.gather("x") == ["x"]
