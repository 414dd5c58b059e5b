"""Terms of the loss against plain autograd: KL placements, entropy, corrections, adaptive beta."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_engine.config.job import RunConfig
from grpo_engine.contract.events import RolloutsRecorded, StepFinished
from grpo_engine.contract.records import FinishReason, Score
from grpo_engine.models.policy import Policy
from grpo_engine.objective.loss import kl_estimate
from grpo_engine.objective.types import Completion, GradedGroup, Group, PackedBatch, Prompt
from grpo_engine.run.build import build_loop
from grpo_engine.training.gradients import with_kl_penalties
from tests.engine.conftest import cut
from tests.engine.injection import InjectedSampler, injected_trainer, metrics_of_step, random_steps
from tests.engine.one_group import (
    FIRST,
    PROMPT,
    SECOND,
    TWO,
    completion,
    gradients_of,
    same,
    scored,
    settings,
    term,
)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("placement", ["loss", "loss_sequence"])
def test_the_kl_in_the_loss_has_the_gradient_of_its_formula(
    make_policy: Callable[..., Policy], estimator: str, placement: str
) -> None:
    """By token: the mean over a completion's tokens, then over completions. By sequence: the sum instead."""
    policy = make_policy()
    group = scored(TWO, advantages=(0.0, 0.0))
    made, batch = term(policy, group, beta=0.3, kl_estimator=estimator, kl_placement=placement)
    reference_N = policy.reference_logprobs(batch)

    def expected() -> None:
        kl_N = kl_estimate(policy.logprobs(batch)[0], reference_N, estimator)
        sums = torch.stack([each.sum() for each in kl_N.split([4, 2])])
        means = sums / torch.tensor([4.0, 2.0]) if placement == "loss" else sums
        (0.3 * means.mean()).backward()

    assert same(gradients_of(policy, lambda: made(1000)), gradients_of(policy, expected))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kl_of_full_fine_tuning_is_zero_before_the_first_update(
    make_policy: Callable[..., Policy], dtype: torch.dtype
) -> None:
    policy = make_policy(lora="full", dtype=dtype)
    policy.keep_reference()
    assert policy.forward.name == "kernels"
    made, _ = term(policy, scored(TWO), beta=0.3)
    assert made(1000)["kl"] == 0.0
    with torch.no_grad():
        policy.model.base_model.norm.weight *= 1.1
    assert made(1000)["kl"] > 1e-5


def test_the_kl_in_the_reward_is_subtracted_from_it(make_policy: Callable[..., Policy]) -> None:
    policy = make_policy()
    group = Group(Prompt(0, "", PROMPT, {}), TWO)
    graded = GradedGroup(group, (Score(reward=1.0), Score(reward=0.0)))
    options = settings(beta=0.3, kl_placement="reward", kl_estimator="k1")
    (found,), mean = with_kl_penalties(policy, [graded], options, 0.3, 1000)
    _, batch = term(policy, scored(TWO))
    with torch.no_grad():
        kl_N = policy.logprobs(batch)[0] - policy.reference_logprobs(batch)
    expected = [0.3 * float(each.sum()) for each in kl_N.split([4, 2])]
    assert found.penalties == pytest.approx(expected, rel=1e-5)
    assert mean == pytest.approx(float(kl_N.mean()), rel=1e-5)
    (split,), _ = with_kl_penalties(policy, [graded], options, 0.3, 8)
    assert split.penalties == pytest.approx(found.penalties, rel=1e-4)
    made, _ = term(policy, scored(TWO, advantages=(0.0, 0.0)), beta=0.3, kl_placement="reward")
    assert not any(bool(each.any()) for each in gradients_of(policy, lambda: made(1000)))


@pytest.mark.parametrize("others", [(), (FIRST * 40,)])
def test_a_session_that_failed_before_its_first_turn_has_no_kl_penalty(
    make_policy: Callable[..., Policy], others: tuple[tuple[int, ...], ...]
) -> None:
    completions = completion((), finish_reason=FinishReason.LENGTH), *map(completion, others)
    group = Group(Prompt(0, "", PROMPT, {}), completions)
    graded = GradedGroup(group, (Score(reward=None),) * len(completions))
    options = settings(beta=0.3, kl_placement="reward")
    (found,), _ = with_kl_penalties(make_policy(), [graded], options, 0.3, 1000)
    assert found.penalties[0] == 0.0


def test_a_penalised_step_trains_on_the_rewards_less_their_kl(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    steps = random_steps(1, 1, 4)
    config = make_config(beta=0.3, kl_placement="reward", kl_estimator="k1", advantage="mean_only")
    trainer = injected_trainer(config, steps)
    event, finished = (each for each in trainer.step(1) if isinstance(each, RolloutsRecorded | StepFinished))
    group = event.groups[0]
    with_kl = [c.advantage for c in group.completions]
    rewards = [c.reward for c in group.completions]
    plain = [reward - sum(rewards) / 4 for reward in rewards]
    assert max(abs(a - b) for a, b in zip(with_kl, plain, strict=True)) > 1e-4
    assert sum(with_kl) == pytest.approx(0.0, abs=1e-9)
    assert finished.metrics["kl"] != 0.0


def test_the_entropy_bonus_is_the_mean_entropy_of_the_trained_tokens(
    make_policy: Callable[..., Policy],
) -> None:
    policy = make_policy()
    made, batch = term(policy, scored(TWO, advantages=(0.0, 0.0)), entropy_coef=0.5)

    def expected() -> None:
        _, entropy_N = policy.logprobs(batch, entropy_gradient=True)
        (-0.5 * entropy_N.mean()).backward()

    assert same(gradients_of(policy, lambda: made(1000)), gradients_of(policy, expected))


@pytest.mark.parametrize(("share", "count"), [(0.2, 2), (0.5, 3), (0.01, 1), (1.0, 6)])
def test_the_share_of_tokens_with_the_highest_entropy_has_loss_and_bonus(
    make_policy: Callable[..., Policy], share: float, count: int
) -> None:
    policy = make_policy()
    options = {"loss_type": "dapo", "top_entropy_quantile": share, "entropy_coef": 0.5}
    made, batch = term(policy, scored(TWO), **options)
    with torch.no_grad():
        entropy_N = policy.logprobs(batch)[1]
    chosen_N = (entropy_N >= entropy_N.sort(descending=True).values[count - 1]).float()

    def expected() -> None:
        logprobs_N, entropy_N = policy.logprobs(batch, entropy_gradient=True)
        bonus = 0.5 * (entropy_N * chosen_N).sum() / chosen_N.sum()
        ((-logprobs_N * batch.advantages_N * chosen_N / 6).sum() - bonus).backward()

    assert same(gradients_of(policy, lambda: made(1000)), gradients_of(policy, expected))


def far_off(policy: Policy, batch: PackedBatch, by: float) -> tuple[Completion, Completion]:
    """The two completions; the first one's sampler was `by` nats a token lower than the trained policy."""
    with torch.no_grad():
        first, second = policy.logprobs(batch)[0].split([4, 2])
    return (
        completion(FIRST, logprobs=tuple((first - by).tolist())),
        completion(SECOND, logprobs=tuple(second.tolist())),
    )


@pytest.mark.parametrize(
    ("correction", "factor"),
    [
        ("token_truncate", 1.5),
        ("token_mask", 1.5),
        ("sequence_truncate", 3.0),
        ("sequence_mask", 0.0),
    ],
)
def test_the_samplers_mismatch_is_corrected(
    make_policy: Callable[..., Policy], correction: str, factor: float
) -> None:
    """Each token of the first completion is 1.5 times as likely as sampled, the completion 1.5⁴ times."""
    policy = make_policy()
    _, batch = term(policy, scored(TWO))
    by = float(torch.tensor(1.5).log())
    made, corrected = term(policy, scored(far_off(policy, batch, by)), correction=correction)

    def expected() -> None:
        weights_N = corrected.weights_N * torch.tensor([factor] * 4 + [1.0] * 2)
        (-policy.logprobs(corrected)[0] * corrected.advantages_N * weights_N).sum().backward()

    found: dict[str, float] = {}
    assert same(gradients_of(policy, lambda: found.update(made(1000))), gradients_of(policy, expected))
    assert found["sampling/importance_sampling_ratio/max"] == pytest.approx(1.5, rel=1e-4)
    assert found["sampling/sampling_logp_difference/max"] == pytest.approx(by, rel=1e-3)


def test_auto_corrects_only_samplers_with_other_numerics(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    steps = random_steps(1, 3, 4)
    for shares, expected in ((True, "none"), (False, "sequence_mask")):
        sampler = InjectedSampler(steps, matches_trainer=shares)
        trainer = injected_trainer(make_config(), steps, sampler)
        assert trainer._correction() == expected
    configured = injected_trainer(make_config(importance_correction="token_mask"), steps)
    assert configured._correction() == "token_mask"


@pytest.mark.parametrize("lora", [{"rank": 4}, "full"], ids=["adapter", "full"])
def test_auto_corrects_each_token_in_bfloat16(
    make_config: Callable[..., RunConfig], tmp_path: Path, lora: Any
) -> None:
    config = cut(make_config(lora=lora), dtype="bfloat16")
    assert build_loop(config, tmp_path).method._correction() == "token_truncate"
    assert build_loop(cut(config, dtype="float32"), tmp_path).method._correction() == "none"


def test_an_adaptive_beta_moves_towards_its_target(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    steps = random_steps(2, 4, 4)
    for target, factor in ((1e-9, 1.2), (1e3, 0.8)):
        config = make_config(beta=0.1, kl_target=target, kl_horizon=16)
        trainer = injected_trainer(config, steps)
        metrics_of_step(trainer, 1)
        assert trainer.beta == pytest.approx(0.1 * factor)
        assert metrics_of_step(trainer, 2)["beta"] == pytest.approx(0.1 * factor)
        assert trainer.beta == pytest.approx(0.1 * factor**2)
