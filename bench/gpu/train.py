"""Trainer only: the policy gradient and the optimiser over groups of random tokens, as a job's step does it.

Left out: sampling and scoring, and the reference: β is 0.
"""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import replace
from typing import Any

import torch

from bench.gpu.child import Measure, settle
from bench.gpu.parts import Cell
from bench.trl import work
from bench.trl.ours import config_of
from bench.trl.side import Spec
from grpo_engine.config.job import Reinforcement
from grpo_engine.config.reinforcement import ReinforcementHyperparameters
from grpo_engine.models.policy import Policy, load_policy
from grpo_engine.objective.packing import TrainingGroup, TrainingSequence
from grpo_engine.run.build import choose_device, choose_dtype
from grpo_engine.training.gradients import PolicyGradient
from grpo_engine.training.micro_batch_budget import MicroBatchBudget
from grpo_engine.training.optimizer import Optimizer


def open_training(spec: Spec, passes: int) -> Measure:
    """The model, loaded once for all cells."""
    policy, settings = policy_of(spec)

    def measure(cell: Cell, until: float) -> dict[str, Any]:
        return train(policy, settings, spec, cell, passes, until)

    return measure


def policy_of(spec: Spec) -> tuple[Policy, ReinforcementHyperparameters]:
    """As a job has them."""
    config = config_of(spec)
    assert isinstance(config.method, Reinforcement)
    settings = config.method.reinforcement.hyperparameters
    device = choose_device(config.runtime)
    dtype = choose_dtype(config.runtime, device)
    return load_policy(config.model, settings, device, dtype, spec.seed), settings


def train(
    policy: Policy,
    settings: ReinforcementHyperparameters,
    spec: Spec,
    cell: Cell,
    passes: int,
    until: float,
) -> dict[str, Any]:
    """One pass to warm up and to find what fits, then timed ones."""
    _keep_activations(policy, not cell.recompute)
    groups = random_groups(cell, policy.model.config.vocab_size, spec.seed)
    optimizer = Optimizer(policy.trainable, settings)
    budget = MicroBatchBudget(policy, cell.tokens_at_a_time)
    gradients = PolicyGradient(policy, settings, groups, beta=0.0, correction="none")
    norms: list[float] = []

    def one_pass(step: int) -> float:
        settle()
        began = time.perf_counter()
        found = budget.run(gradients, optimizer.clear, step)
        norms.append(optimizer.step(spec.learning_rate, found["loss"], step=step))
        settle()
        return time.perf_counter() - began

    longest = one_pass(0)
    _start_peak()
    timed = [one_pass(1)]
    while len(timed) < passes and time.monotonic() + longest < until:
        timed.append(one_pass(len(timed) + 1))
    return _figures(policy, spec, cell, timed, budget, norms)


def _figures(
    policy: Policy, spec: Spec, cell: Cell, timed: list[float], budget: MicroBatchBudget, norms: list[float]
) -> dict[str, Any]:
    seconds = statistics.median(timed)
    sizes = replace(
        spec, prompts=cell.prompts, group_size=cell.group_size, prompt_tokens=cell.prompt_tokens, beta=0.0
    )
    return {
        "seconds": seconds,
        "passes": len(timed),
        "tokens": cell.tokens,
        "tokens_per_second": cell.tokens / seconds,
        "trained_tokens_per_second": cell.completion_tokens / seconds,
        "flops": work.train_flops(policy.model.config, sizes, cell.completion_tokens, cell.length),
        "tokens_at_a_time": budget.tokens,
        "activations_recomputed": policy.fast is not None and policy.fast.checkpointed,
        "own_kernels": policy.fast is not None,
        "grad_norm": norms[-1],
        "warnings": [warning.message for warning in budget.take_warnings()],
    }


def _start_peak() -> None:
    """What the first pass tried in vain is no part of the peak."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def _keep_activations(policy: Policy, keep: bool) -> None:
    """An earlier cell may have run out of memory and given them up. Raises ValueError where it cannot be."""
    if policy.fast is not None:
        policy.fast.checkpointed = not keep
    elif not keep:
        raise ValueError("this model is not run by our own kernels: its activations are always kept")


def random_groups(cell: Cell, vocab: int, seed: int) -> list[TrainingGroup]:
    """Random tokens and advantages: every token is trained, as in DAPO's loss."""
    drawn = random.Random(seed)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(drawn.randrange(2, vocab) for _ in range(count))

    def sequence(index: int) -> TrainingSequence:
        advantage = drawn.gauss(0.0, 1.0)
        return TrainingSequence(
            token_ids=tokens(cell.length),
            logprobs=(0.0,) * cell.length,
            advantages=(advantage,) * cell.length,
            weight=1.0 / cell.completion_tokens,
            index=index,
        )

    size = cell.group_size
    return [
        TrainingGroup(tokens(cell.prompt_tokens), tuple(sequence(group * size + i) for i in range(size)))
        for group in range(cell.prompts)
    ]
