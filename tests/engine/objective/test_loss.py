"""Losses: value and gradient against TRL 1.16's own, hand values, identities."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from grpo_engine.config.job import ReinforcementHyperparameters as Settings
from grpo_engine.objective.loss import (
    LOSSES,
    adapted_beta,
    clip_counts,
    importance_weights,
    kl_estimate,
    kl_losses,
    policy_losses,
    ratios,
    token_weights,
)
from tests.engine.objective.check_vectors import errors, main, supported

VECTORS = Path(__file__).parent / "vectors" / "loss.json"
A = torch.tensor([1.0, -1.0, 2.0])
OLD = torch.full((3,), -1.0)
NEW = torch.tensor([-1.69315, -1.0, -0.59453])
"""ρ = 0.5, 1, 1.5."""
EACH = torch.arange(3)


def test_every_case_agrees_with_trl_in_value_and_gradient() -> None:
    found = list(errors(json.loads(VECTORS.read_text())))
    assert len(found) == 17
    assert max(max(loss, gradient) for _, loss, gradient in found) < 1e-12


def test_the_vector_check_exits_1_for_a_wrong_value_or_nan(tmp_path: Path) -> None:
    vectors = json.loads(VECTORS.read_text())
    right = vectors["cases"]["grpo"]["loss"]
    assert main([str(VECTORS)]) == 0
    for wrong in (right + 1e-5, math.nan):
        vectors["cases"]["grpo"]["loss"] = wrong
        (tmp_path / "wrong.json").write_text(json.dumps(vectors))
        assert main([str(tmp_path / "wrong.json")]) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"loss_type": "gspo", "eps_low": 3e-4, "eps_high": 4e-4},
        {"loss_type": "reinforce", "beta": 0.04, "kl_estimator": "k1"},
        {"loss_type": "dapo", "importance_sampling_level": "sequence", "delta": None},
        {"loss_type": "sapo", "sapo_temperature_neg": 1.1, "entropy_coef": 0.01},
        {"loss_type": "grpo", "is_mode": "sequence_mask", "is_cap": 3.0},
    ],
)
def test_the_vector_check_accepts_several_names_of_an_option(options: dict[str, object]) -> None:
    assert supported(options)


@pytest.mark.parametrize(
    "options",
    [{"loss_type": "vespo"}, {"loss_type": "grpo", "opsm": 0.5}, {"loss_type": "grpo", "level": "x"}],
)
def test_the_vector_check_reports_unsupported_cases(options: dict[str, object]) -> None:
    assert not supported(options)


def test_the_clipped_surrogate_has_its_hand_value() -> None:
    losses = policy_losses(NEW, OLD, A, EACH, Settings())
    assert losses.mean().item() == pytest.approx(-0.6333, abs=1e-4)


def test_a_two_sided_clip_has_its_hand_value() -> None:
    """ρ = 10 at A = −4 counts as 3: 12 instead of 40; the others as without."""
    advantages, old = torch.tensor([1.0, -1.0, -4.0]), torch.tensor([-1.0, -1.0, -3.0])
    new = torch.tensor([-1.69315, -1.0, -0.69741])
    losses = policy_losses(new, old, advantages, EACH, Settings(delta=3.0))
    assert losses.sum().item() == pytest.approx(12.5, abs=1e-3)


def test_cispo_has_its_hand_value() -> None:
    """Measured with a clip to (0.8, 1.2); ours bounds from above alone, so ρ = 0.5 stays."""
    advantages, old = torch.tensor([1.0, -1.0, -4.0]), torch.tensor([-1.0, -1.0, -3.0])
    new = torch.tensor([-1.69315, -1.0, -0.69741])
    losses = policy_losses(new, old, advantages, EACH, Settings(loss_type="cispo", epsilon_high=1.2))
    from_below = (0.8 - 0.5) * 1.69315
    assert losses.sum().item() + from_below == pytest.approx(-2.9930, abs=1e-3)


def test_a_cispo_token_beyond_the_bound_still_learns() -> None:
    new = torch.tensor([0.0], requires_grad=True)
    settings = Settings(loss_type="cispo", epsilon_high=5.0)
    policy_losses(
        new, torch.tensor([-9.0]), torch.ones(1), torch.zeros(1, dtype=torch.long), settings
    ).backward()
    assert new.grad is not None
    assert new.grad.item() == -5.0


def test_sapo_has_its_hand_value_for_both_signs() -> None:
    """−(4/τ)·σ(τ(ρ−1))·A at ρ = 1.5, τ = 1 for A = 1 and τ = 1.05 for A = −1."""
    new = torch.full((2,), math.log(1.5))
    losses = policy_losses(
        new, torch.zeros(2), torch.tensor([1.0, -1.0]), torch.tensor([0, 1]), Settings(loss_type="sapo")
    )
    expected = [-4 / (1 + math.exp(-0.5)), 4 / 1.05 / (1 + math.exp(-0.525))]
    assert losses.tolist() == pytest.approx(expected, rel=1e-6)


def test_the_sequence_ratio_is_the_exponential_of_the_mean_over_the_trained_tokens() -> None:
    new, old = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-1.5, -2.0, -2.0])
    found = ratios(new, old, torch.tensor([0, 0, 1]), "gspo")
    assert found.tolist() == pytest.approx([math.exp(0.25), math.exp(0.25), math.exp(-1)])


def test_estimators_of_the_kl_have_their_hand_values() -> None:
    logprobs, reference = torch.tensor([-1.0, -3.0]), torch.tensor([-2.0, -2.5])
    assert kl_estimate(logprobs, reference, "k1").tolist() == [1.0, -0.5]
    assert kl_estimate(logprobs, reference, "k2").tolist() == [0.5, 0.125]
    assert kl_estimate(logprobs, reference, "k3").tolist() == pytest.approx(
        [math.exp(-1) + 1 - 1, math.exp(0.5) - 0.5 - 1]
    )


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_an_estimators_mean_over_the_policys_own_tokens_is_the_kl(estimator: str) -> None:
    policy = torch.tensor([0.5, 0.2, 0.2, 0.07, 0.03], dtype=torch.float64)
    reference = torch.tensor([0.1, 0.3, 0.3, 0.2, 0.1], dtype=torch.float64)
    exact = (policy * (policy / reference).log()).sum()
    estimated = (policy * kl_estimate(policy.log(), reference.log(), estimator)).sum()
    assert estimated.item() == pytest.approx(exact.item(), rel=1e-12)


def test_k3_is_zero_with_zero_gradient_if_policy_and_reference_agree() -> None:
    logprobs = torch.tensor([-0.5, -2.0], requires_grad=True)
    kl = kl_estimate(logprobs, logprobs.detach())
    kl.sum().backward()
    assert kl.tolist() == [0.0, 0.0]
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [0.0, 0.0]


def test_an_unknown_estimator_or_loss_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown kl_estimator 'k4'"):
        kl_estimate(NEW, OLD, "k4")
    with pytest.raises(ValueError, match="unknown loss_type 'nope'"):
        token_weights("nope", [1], 1)


def test_a_ratio_weighted_kl_has_the_ratios_own_gradient_too() -> None:
    """d(ρ·KL)/dlp = ρ·KL + ρ·KL'; without the weight only KL'."""
    new = torch.tensor([-1.0], requires_grad=True)
    old, reference = torch.tensor([-1.5]), torch.tensor([-2.0])
    settings = Settings(kl_ratio_weight=True)
    kl_losses(new, old, reference, torch.zeros(1, dtype=torch.long), settings).sum().backward()
    ratio, kl, slope = math.exp(0.5), math.exp(-1), 1 - math.exp(-1)
    assert new.grad is not None
    assert new.grad.item() == pytest.approx(ratio * (kl + slope), rel=1e-6)


def gradient(loss_type: str, lengths: list[int], advantages: list[float]) -> tuple[float, Tensor]:
    """On-policy loss of completions of these lengths, and its gradient by token."""
    sequences = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    logprobs = -torch.rand(sum(lengths), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    logprobs.requires_grad_(True)
    advantages_N = torch.tensor(advantages, dtype=torch.float64)[sequences]
    weights_N = torch.tensor(token_weights(loss_type, lengths, 16), dtype=torch.float64)[sequences]
    settings = Settings(loss_type=loss_type, epsilon_high=5.0 if loss_type == "cispo" else 0.2)
    losses = policy_losses(logprobs, logprobs.detach(), advantages_N, sequences, settings)
    loss = (losses * weights_N).sum()
    loss.backward()
    assert logprobs.grad is not None
    return loss.item(), logprobs.grad


@pytest.mark.parametrize(
    ("left", "right"),
    [("cispo", "dapo"), ("reinforce", "dapo"), ("bnpo", "dapo"), ("sapo", "grpo"), ("gspo", "grpo")],
)
def test_on_policy_gradients_of_the_same_aggregation_are_the_same(left: str, right: str) -> None:
    lengths, advantages = [3, 1, 5], [1.0, -0.7, 0.2]
    assert torch.allclose(gradient(left, lengths, advantages)[1], gradient(right, lengths, advantages)[1])


def test_on_policy_the_loss_is_zero_for_balanced_advantages_while_its_gradient_is_not() -> None:
    loss, by_token = gradient("grpo", [1, 2], [1.0, -1.0])
    assert loss == pytest.approx(0.0, abs=1e-15)
    assert by_token.tolist() == [-0.5, 0.25, 0.25]


def test_weights_add_up_to_one_for_the_losses_that_are_means() -> None:
    lengths = [3, 5, 1]
    for loss_type in set(LOSSES) - {"dr_grpo"}:
        shares = token_weights(loss_type, lengths, 16)
        assert sum(w * n for w, n in zip(shares, lengths, strict=True)) == pytest.approx(1.0)
    assert token_weights("dr_grpo", lengths, 16) == [1 / 48] * 3
    assert token_weights("grpo", lengths, 16) == [1 / 9, 1 / 15, 1 / 3]


def test_a_completion_without_trained_tokens_still_counts_as_a_completion() -> None:
    assert token_weights("grpo", [4, 0], 16)[0] == 1 / 8
    assert token_weights("dr_grpo", [4, 0], 16) == [1 / 32] * 2
    assert token_weights("dapo", [0, 0], 16) == [1.0, 1.0]


def test_only_effective_clipping_is_counted() -> None:
    ratio = torch.tensor([0.5, 0.5, 0.5, 1.5, 1.5, 1.5])
    advantages = torch.tensor([-1.0, 0.0, 1.0, 1.0, 0.0, -1.0])
    assert clip_counts(ratio, advantages, Settings()) == (1.0, 1.0)
    assert clip_counts(ratio, advantages, Settings(loss_type="cispo", epsilon_high=1.2)) == (0.0, 1.0)
    for without_clip in ("sapo", "reinforce"):
        assert clip_counts(ratio, advantages, Settings(loss_type=without_clip)) == (0.0, 0.0)


TRAINED = torch.tensor([0.0, math.log(2), math.log(8), math.log(4)])
ONE_ONE_TWO = torch.tensor([0, 0, 1, 2])


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        ("token_truncate", [1.0, 2.0, 3.0, 3.0]),
        ("token_mask", [1.0, 2.0, 0.0, 0.0]),
        ("sequence_truncate", [2.0, 2.0, 3.0, 3.0]),
        ("sequence_mask", [2.0, 2.0, 0.0, 0.0]),
    ],
)
def test_importance_weights_have_their_hand_values(correction: str, expected: list[float]) -> None:
    found = importance_weights(TRAINED, torch.zeros(4), ONE_ONE_TWO, correction, 3.0)
    assert found.tolist() == pytest.approx(expected)


def test_a_sequences_importance_is_the_product_over_its_tokens() -> None:
    trained = torch.tensor([math.log(2), math.log(1.25), -math.log(4)])
    found = importance_weights(trained, torch.zeros(3), torch.tensor([0, 0, 1]), "sequence_mask", 3.0)
    assert found.tolist() == pytest.approx([2.5, 2.5, 0.25])


def test_importance_weights_carry_no_gradient() -> None:
    trained = TRAINED.clone().requires_grad_(True)
    assert not importance_weights(trained, torch.zeros(4), ONE_ONE_TWO, "token_mask", 3.0).requires_grad


def test_beta_follows_the_kl_by_at_most_a_fifth_of_its_horizon() -> None:
    assert adapted_beta(0.1, kl=0.2, target=0.1, horizon=1000, completions=100) == pytest.approx(0.102)
    assert adapted_beta(0.1, kl=0.0, target=0.1, horizon=1000, completions=100) == pytest.approx(0.098)
    assert adapted_beta(0.1, kl=0.11, target=0.1, horizon=1000, completions=100) == pytest.approx(0.101)
    assert adapted_beta(0.1, kl=0.1, target=0.1, horizon=1000, completions=100) == pytest.approx(0.1)


@pytest.mark.parametrize("horizon", [1, 12, 100])
def test_beta_stays_positive_in_a_step_of_many_horizons(horizon: int) -> None:
    assert adapted_beta(0.1, kl=0.0, target=0.1, horizon=horizon, completions=512) == pytest.approx(0.01)


@pytest.mark.parametrize("loss_type", sorted(LOSSES))
def test_a_token_without_advantage_has_no_gradient(loss_type: str) -> None:
    new = NEW.clone().requires_grad_(True)
    losses = policy_losses(new, OLD, torch.zeros(3), EACH, Settings.model_construct(loss_type=loss_type))
    losses.sum().backward()
    assert new.grad is not None
    assert torch.equal(new.grad, torch.zeros(3))
