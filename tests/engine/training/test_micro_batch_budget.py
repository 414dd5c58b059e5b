"""How a step adapts to a device that is too small, and the memory probe."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from grpo_engine.config.job import RunConfig
from grpo_engine.contract.errors import DeviceMemoryError
from grpo_engine.models.policy import Policy
from grpo_engine.objective.packing import pack
from grpo_engine.objective.types import Prompt
from grpo_engine.training.gradients import PolicyGradient
from grpo_engine.training.micro_batch_budget import CPU_TOKENS, MicroBatchBudget, longest_group
from grpo_engine.training.trainer import Trainer
from tests.engine.conftest import largest_difference, parameters_of
from tests.engine.injection import CPU, injected_trainer, random_steps


class Device:
    """Fits `most` tokens, or a quarter of them if activations are kept."""

    def __init__(self, policy: Policy, most: int) -> None:
        self.policy, self.most = policy, most
        self.asked: list[int] = []
        self.cleared = 0

    def gradients(self, budget: int) -> str:
        self.asked.append(budget)
        assert self.policy.fast is not None
        needed = budget if self.policy.fast.checkpointed else 4 * budget
        if needed > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return "gradients"

    def clear(self) -> None:
        self.cleared += 1


def given_way(policy: Policy, tokens: int, most: int) -> tuple[Device, MicroBatchBudget]:
    device, budget = Device(policy, most), MicroBatchBudget(policy, tokens)
    assert budget.run(device.gradients, device.clear, 3) == "gradients"
    return device, budget


def test_a_step_that_fits_is_computed_at_once_without_warning(make_policy: Callable[..., Policy]) -> None:
    device, budget = given_way(make_policy(), 16_384, most=100_000)
    assert (device.asked, device.cleared, budget.take_warnings()) == ([16_384], 0, [])


def test_without_a_stated_budget_a_larger_model_takes_fewer_tokens_at_a_time(
    make_policy: Callable[..., Policy],
) -> None:
    policy = make_policy()
    assert MicroBatchBudget(policy, None).tokens == CPU_TOKENS.stop
    policy.model.config.num_hidden_layers *= 10
    assert CPU_TOKENS.start < MicroBatchBudget(policy, None).tokens < CPU_TOKENS.stop
    policy.model.config.num_hidden_layers *= 60
    assert MicroBatchBudget(policy, None).tokens == CPU_TOKENS.start


def test_the_default_budget_adds_room_for_the_longest_prompt(
    make_policy: Callable[..., Policy],
) -> None:
    free, stated = MicroBatchBudget(make_policy(), None), MicroBatchBudget(make_policy(), 256)
    for budget in (free, stated):
        budget.add_prompt(longest_prompt=512)
    assert (free.tokens, stated.tokens) == (CPU_TOKENS.stop + 512, 256)


def test_first_fewer_tokens_then_fewer_activations_then_fewer_tokens_again(
    make_policy: Callable[..., Policy],
) -> None:
    device, budget = given_way(make_policy(), 16_384, most=1500)
    assert device.asked == [16_384, 8192, 4096, 4096, 2048, 1024]
    assert device.cleared == 5
    halved, checkpointed = "token_budget_halved", "gradient_checkpointing"
    warnings = budget.take_warnings()
    assert [warning.code for warning in warnings] == [halved, halved, checkpointed, halved, halved]
    assert "repeated with 1024 tokens per micro-batch" in warnings[-1].message
    assert budget.take_warnings() == []


def test_recomputation_comes_before_smaller_micro_batches(make_policy: Callable[..., Policy]) -> None:
    device, budget = given_way(make_policy(), 4096, most=4096)
    assert device.asked == [4096, 4096]
    assert budget.tokens == 4096


def test_a_reduced_budget_applies_to_later_steps(make_policy: Callable[..., Policy]) -> None:
    device, budget = given_way(make_policy(), 8192, most=1024)
    device.asked.clear()
    budget.run(device.gradients, device.clear, 4)
    assert device.asked == [1024]


def test_a_model_without_our_kernels_gives_way_by_tokens_alone(make_policy: Callable[..., Policy]) -> None:
    asked: list[int] = []

    def gradients(budget: int) -> int:
        asked.append(budget)
        if budget > 100:
            raise torch.OutOfMemoryError("too much")
        return budget

    budget = MicroBatchBudget(make_policy("gpt2"), 400)
    assert budget.run(gradients, lambda: None, 1) == 100
    assert asked == [400, 200, 100]


def test_a_step_that_never_fits_fails_with_the_devices_message(
    make_policy: Callable[..., Policy],
) -> None:
    device = Device(make_policy(), most=10)
    with pytest.raises(DeviceMemoryError, match="step 3 does not fit the device's memory") as raised:
        MicroBatchBudget(device.policy, 256).run(device.gradients, device.clear, 3)
    assert device.asked == [256, 256, 128, 64]
    assert raised.value.evidence == ("CUDA out of memory. Tried to allocate 2 GiB",)


def test_an_error_other_than_out_of_memory_is_not_retried(make_policy: Callable[..., Policy]) -> None:
    calls: list[int] = []

    def gradients(budget: int) -> None:
        calls.append(budget)
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        MicroBatchBudget(make_policy(), 256).run(gradients, lambda: None, 1)
    assert calls == [256]


PROMPTS = [Prompt(row, "", tuple(range(6, 6 + length)), {}) for row, length in enumerate((3, 9, 1))]


def test_the_longest_group_is_the_longest_prompt_with_all_its_tokens() -> None:
    group = longest_group(PROMPTS, 5, 20)
    assert group.prompt_ids == PROMPTS[1].token_ids
    assert [len(sequence.token_ids) for sequence in group.sequences] == [20] * 5
    assert [sequence.index for sequence in group.sequences] == list(range(5))
    assert {token for sequence in group.sequences for token in sequence.token_ids} <= set(group.prompt_ids)
    batch = next(pack([group], 1000, CPU))
    assert batch.input_ids.shape == (1, 9 + 5 * 20)
    assert batch.targets_N.shape == (100,)


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("lora", [{"rank": 4}, "full"])
def test_the_longest_group_runs_the_whole_backward_and_moves_nothing(
    make_config: Callable[..., RunConfig], tmp_path: Path, lora: object, beta: float
) -> None:
    trainer = injected_trainer(make_config(lora=lora, beta=beta), random_steps(1, 4, 4))
    group = longest_group(PROMPTS, 4, 8)
    term = PolicyGradient(trainer.policy, trainer.hyperparameters, [group], beta=beta, correction="none")
    trainer.updater.in_micro_batches(1, term)
    gradients = [each.grad for each in trainer.policy.trainable.values()]
    assert all(each is not None and not each.any() for each in gradients)


def test_a_probed_trainer_is_the_trainer_that_it_was(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    found: list[Trainer] = []
    for probes in (True, False):
        trainer = injected_trainer(make_config(), random_steps(1, 4, 4))
        if probes:
            trainer.probe_memory()
            assert all(each.grad is None or not each.grad.any() for each in trainer.policy.trainable.values())
        list(trainer.step(1))
        found.append(trainer)
    assert largest_difference(*map(parameters_of, found)) == 0.0


def test_out_of_memory_in_a_step_changes_its_pieces_and_not_its_result(
    make_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It strikes in the midst of the second micro-batch, when gradients of the first are there already."""
    steps = random_steps(1, 4, 4)
    undisturbed = injected_trainer(make_config(), steps)
    list(undisturbed.step(1))
    trainer = injected_trainer(make_config(), steps)
    trainer.updater.budget.tokens = 60
    calls: list[int] = []
    logprobs = Policy.logprobs

    def small(self: Policy, *arguments: object, **named: object) -> object:
        calls.append(1)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("small")
        return logprobs(self, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Policy, "logprobs", small)
    list(trainer.step(1))
    assert len(calls) > 3
    assert trainer.policy.fast is not None
    assert trainer.policy.fast.checkpointed
    assert largest_difference(parameters_of(undisturbed), parameters_of(trainer)) < 1e-6
