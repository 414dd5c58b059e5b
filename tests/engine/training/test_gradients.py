"""Gradients of a step against plain autograd: inner iterations, masks, context, no signal."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_engine.config.job import ReinforcementHyperparameters, RunConfig
from grpo_engine.contract.events import StepFinished, StepSkipped
from grpo_engine.contract.records import FinishReason
from grpo_engine.models.policy import Policy
from grpo_engine.objective.loss import policy_losses
from grpo_engine.objective.packing import training_groups
from grpo_engine.objective.types import ScoredGroup
from tests.engine.conftest import largest_difference, parameters_of
from tests.engine.injection import Given, injected_trainer, random_steps
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


def shifted(policy: Policy, by: float) -> None:
    """Another policy in the same object."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in policy.trainable.values():
            parameter.add_(by * torch.randn(parameter.shape, generator=generator))


def test_a_second_iteration_compares_with_the_policy_that_sampled(make_policy: Callable[..., Policy]) -> None:
    policy = make_policy()
    made, batch = term(policy, scored(TWO), num_iterations=2, epsilon=0.05)
    old_N = policy.logprobs(batch)[0].detach()
    first = made(1000)
    assert first["clip_ratio/region_mean"] == 0.0
    shifted(policy, 0.05)

    def expected() -> None:
        logprobs_N, _ = policy.logprobs(batch)
        losses_N = policy_losses(
            logprobs_N,
            old_N,
            batch.advantages_N,
            batch.sequences_N,
            ReinforcementHyperparameters(epsilon_low=0.05, epsilon_high=0.05),
        )
        (losses_N * batch.weights_N).sum().backward()

    by_hand = gradients_of(policy, expected)
    found: dict[str, float] = {}
    assert same(gradients_of(policy, lambda: found.update(made(1000))), by_hand)
    ratio_N = (policy.logprobs(batch)[0].detach() - old_N).exp()
    low = (ratio_N < 0.95) & (batch.advantages_N < 0)
    high = (ratio_N > 1.05) & (batch.advantages_N > 0)
    assert int((low | high).sum()) > 0
    assert found["clip_ratio/low_mean"] == pytest.approx(float(low.float().mean()))
    assert found["clip_ratio/high_mean"] == pytest.approx(float(high.float().mean()))


def test_the_old_policy_is_remembered_in_whatever_pieces_it_was_computed(
    make_policy: Callable[..., Policy],
) -> None:
    policy = make_policy()
    found = []
    for budgets in ((1000, 1000), (8, 1000), (1000, 8)):
        made, _ = term(policy, scored(TWO), num_iterations=2, beta=0.1)
        made(budgets[0])
        before = parameters_of_policy(policy)
        shifted(policy, 0.05)
        found.append(gradients_of(policy, lambda made=made, budgets=budgets: made(budgets[1])))  # type: ignore[misc]
        restore(policy, before)
    assert same(found[0], found[1])
    assert same(found[0], found[2])


def parameters_of_policy(policy: Policy) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in policy.trainable.items()}


def restore(policy: Policy, before: dict[str, Tensor]) -> None:
    for name, parameter in policy.trainable.items():
        parameter.data.copy_(before[name])


WITH_TOOL = completion(FIRST, sampled=(True, False, False, True))


def logit_gradients(policy: Policy, group: ScoredGroup, **fields: Any) -> Tensor:
    """Gradient of the loss at the logits of the plain forward [completions, tokens, V]."""
    policy.shares_prompts = False
    logits: list[Tensor] = []

    def keep(module: Any, arguments: Any, output: Tensor) -> None:
        output.retain_grad()
        logits.append(output)

    hook = policy.model.get_output_embeddings().register_forward_hook(keep)
    term(policy, group, **fields)[0](1000)
    hook.remove()
    assert logits[0].grad is not None
    return logits[0].grad


def test_tool_tokens_have_a_gradient_of_exactly_zero(make_policy: Callable[..., Policy]) -> None:
    found = logit_gradients(make_policy(), scored((WITH_TOOL, completion(SECOND))))
    moved = found.abs().amax(-1) > 0
    # the position before a token predicts it; two prompt positions predict the prompt
    assert moved[0].tolist() == [False, False, True, False, False, True, False]
    assert moved[1].tolist()[:5] == [False, False, True, True, False]


def test_a_masked_truncated_completion_has_a_gradient_of_exactly_zero(
    make_policy: Callable[..., Policy],
) -> None:
    cut = completion(FIRST, finish_reason=FinishReason.LENGTH)
    group = scored((cut, completion(SECOND)))
    kept = training_groups([group], settings(mask_truncated_completions=True))
    assert [sequence.index for each in kept for sequence in each.sequences] == [1]
    found = logit_gradients(make_policy(), group, mask_truncated_completions=True)
    assert len(found) == 1
    weights = training_groups([group], settings(loss_type="dapo", mask_truncated_completions=True))
    assert weights[0].sequences[0].weight == 1 / len(SECOND)


def plain_logprobs(policy: Policy, token_ids: tuple[int, ...]) -> Tensor:
    """[T] of a completion by the model's own forward."""
    row = torch.tensor([[*PROMPT, *token_ids]])
    with torch.no_grad():
        log_all = policy.model(input_ids=row).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
    return log_all.gather(1, torch.tensor(token_ids)[:, None]).squeeze(1)


@pytest.mark.parametrize("shared", [True, False])
def test_tool_tokens_are_context_of_later_tokens(make_policy: Callable[..., Policy], shared: bool) -> None:
    policy = make_policy()
    policy.shares_prompts = shared
    group = scored((WITH_TOOL, completion(SECOND)))
    _, batch = term(policy, group)
    with torch.no_grad():
        found, _ = policy.logprobs(batch)
    expected = torch.cat([plain_logprobs(policy, FIRST)[[0, 3]], plain_logprobs(policy, SECOND)])
    assert torch.allclose(found, expected, atol=1e-5)
    other = plain_logprobs(policy, (11, 50, 13, 14))[3]
    assert float((other - expected[1]).abs()) > 1e-3


def test_a_step_without_signal_moves_no_bit_even_if_trained(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    steps = [
        [(prompt, [Given(g.token_ids, 0.7) for g in given]) for prompt, given in random_steps(1, 3, 4)[0]]
    ]
    for trained, event in ((False, StepSkipped), (True, StepFinished)):
        config = make_config(beta=0.0, train_groups_without_signal=trained)
        trainer = injected_trainer(config, steps)
        before = parameters_of(trainer)
        assert isinstance(list(trainer.step(1))[-1], event)
        after = parameters_of(trainer)
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_with_beta_a_trained_group_without_signal_is_pulled_to_the_reference(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    steps = [
        [(prompt, [Given(g.token_ids, 0.7) for g in given]) for prompt, given in random_steps(1, 3, 4)[0]]
    ]
    trainer = injected_trainer(make_config(beta=0.1, train_groups_without_signal=True), steps)
    before = parameters_of(trainer)
    list(trainer.step(1))
    assert largest_difference(before, parameters_of(trainer)) > 1e-5
