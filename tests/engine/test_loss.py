"""Losses: value and gradient against TRL 1.16's own, hand values, identities."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from grpo_engine.loss import clip_counts, kl_k3, surrogate, token_losses, token_weights
from tests.engine.check_vectors import errors, main

VECTORS = Path(__file__).parent / "vectors" / "loss.json"


def test_every_supported_case_agrees_with_trl_in_value_and_gradient() -> None:
    found = list(errors(json.loads(VECTORS.read_text())))
    assert len(found) == 11
    assert max(max(loss, gradient) for _, loss, gradient in found) < 1e-12


def test_the_vector_check_exits_1_where_a_value_is_wrong(tmp_path: Path) -> None:
    vectors = json.loads(VECTORS.read_text())
    vectors["cases"]["grpo"]["loss"] += 1e-5
    (tmp_path / "wrong.json").write_text(json.dumps(vectors))
    assert main([str(VECTORS)]) == 0
    assert main([str(tmp_path / "wrong.json")]) == 1


def test_the_clipped_surrogate_has_its_hand_value() -> None:
    logprobs = torch.tensor([-1.69315, -1.0, -0.59453])
    losses = surrogate(
        logprobs, torch.full((3,), -1.0), torch.tensor([1.0, -1.0, 2.0]), epsilon_low=0.2, epsilon_high=0.2
    )
    assert losses.mean().item() == pytest.approx(-0.6333, abs=1e-4)


def test_k3_is_zero_with_zero_gradient_where_policy_and_reference_agree() -> None:
    logprobs = torch.tensor([-0.5, -2.0], requires_grad=True)
    kl = kl_k3(logprobs, logprobs.detach())
    kl.sum().backward()
    assert kl.tolist() == [0.0, 0.0]
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [0.0, 0.0]


def test_k3_has_its_hand_value() -> None:
    value = kl_k3(torch.tensor([-1.0]), torch.tensor([-2.0])).item()
    assert value == pytest.approx(math.exp(-1) + 1 - 1)


def test_on_policy_the_loss_value_is_zero_for_balanced_advantages_while_its_gradient_is_not() -> None:
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    losses = token_losses(
        logprobs,
        logprobs.detach(),
        torch.tensor([1.0, -1.0]),
        None,
        beta=0.0,
        epsilon_low=0.2,
        epsilon_high=0.2,
    )
    losses.sum().backward()
    assert losses.sum().item() == 0.0
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [-1.0, 1.0]


def test_weights_add_up_to_one_for_the_losses_that_are_means() -> None:
    lengths = [3, 5, 1]
    for loss_type in ("grpo", "dapo"):
        weights = token_weights(loss_type, lengths, 16)
        assert sum(w * n for w, n in zip(weights, lengths, strict=True)) == pytest.approx(1.0)
    assert token_weights("dr_grpo", lengths, 16) == [1 / 48] * 3
    assert token_weights("grpo", lengths, 16) == [1 / 9, 1 / 15, 1 / 3]


def test_an_unknown_loss_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown loss_type 'nope'"):
        token_weights("nope", [1], 1)


def test_clipping_is_counted_only_where_it_takes_effect() -> None:
    ratio = torch.tensor([0.5, 0.5, 1.5, 1.5]).log()
    advantages = torch.tensor([-1.0, 1.0, 1.0, -1.0])
    assert clip_counts(ratio, torch.zeros(4), advantages, 0.2, 0.2) == (1.0, 1.0)
