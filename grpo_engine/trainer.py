"""GRPO: the only file that knows the order of a step.

DeepSeekMath (arXiv 2402.03300) §4: sample a group per prompt, score it, take its own mean and spread as the
baseline, update with the clipped surrogate and the KL to a frozen reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from grpo_engine.adapters import set_lora_dropout
from grpo_engine.config import ReinforcementMethod, RunConfig
from grpo_engine.data import PromptSource
from grpo_engine.errors import NoSignalError
from grpo_engine.evaluation import evaluate_rewards
from grpo_engine.events import BaseEvent, PhaseChanged, StepFinished, StepSkipped
from grpo_engine.loop import TrainingLoop, seed_step
from grpo_engine.loss import token_losses
from grpo_engine.metrics import (
    PhaseTimer,
    TrainingStats,
    completion_metrics,
    finite,
    peak_memory_bytes,
    reward_metrics,
)
from grpo_engine.optim import learning_rate_at
from grpo_engine.packing import TrainingGroup, pack, training_groups
from grpo_engine.policy import Policy
from grpo_engine.sampler.base import Sampler, Sampling
from grpo_engine.scoring import rollouts, score_groups
from grpo_engine.types import PackedBatch, Prompt, ScoredGroup


class Trainer(TrainingLoop):
    def __init__(
        self,
        config: RunConfig,
        method: ReinforcementMethod,
        run_dir: Path,
        policy: Policy,
        sampler: Sampler,
        prompts: Sequence[Prompt],
        validation: Sequence[Prompt] = (),
    ) -> None:
        super().__init__(config, run_dir, policy, method.hyperparameters)
        self.hyperparameters = method.hyperparameters
        self.grader = method.grader
        self.sampler = sampler
        self.sampler_name = type(sampler).__name__
        self.source = PromptSource(prompts, method.hyperparameters.prompts_per_step, config.seed)
        self.validation = validation[: method.hyperparameters.eval_rows(len(validation))]
        self.num_rows = len(prompts)
        self.total_steps = method.hyperparameters.total_steps(len(prompts))

    def step(self, step: int) -> Iterator[BaseEvent]:
        """Sample, score, compare, train, hand the new policy to the sampler."""
        hyperparameters, timer = self.hyperparameters, PhaseTimer()
        self.sampler.load_policy(self.state.policy_version)
        with timer.measure("sample"):
            prompts_P = self.source.batch(step)
            groups_P = self.sampler.generate(prompts_P, hyperparameters.group_size, self._sampling(step))
        with timer.measure("score"):
            scored_P = score_groups(groups_P, self.grader, hyperparameters)
        yield from rollouts(step, scored_P)
        training = training_groups(scored_P, hyperparameters.loss_type, hyperparameters.max_completion_tokens)
        if not training:
            yield self._skip(step, scored_P, timer)
            self._refuse_silence(scored_P)
            return
        with timer.measure("train"):
            stats = self.in_pieces(lambda token_budget: self._gradients(step, training, token_budget))
            learning_rate = learning_rate_at(step, self.total_steps, hyperparameters)
            rows = [prompt.row for prompt in prompts_P]
            grad_norm = self.optimizer.step(learning_rate, stats.loss, step=step, rows=rows)
        self._advance(step, scored_P, skipped=False)
        optimisation = {"grad_norm": grad_norm, "learning_rate": learning_rate}
        yield self._finish(step, scored_P, {**stats.metrics(), **optimisation}, timer)

    def evaluate(self, step: int) -> Iterator[BaseEvent]:
        """Greedy completions of the held-out rows, scored by the job's own grader."""
        if not self.validation:
            return
        yield PhaseChanged(phase="evaluating", step=step)
        self.sampler.load_policy(self.state.policy_version)
        limit = self.hyperparameters.max_completion_tokens
        yield from evaluate_rewards(step, self.validation, self.sampler, self.grader, limit)

    def _sampling(self, step: int) -> Sampling:
        return Sampling(
            max_tokens=self.hyperparameters.max_completion_tokens,
            temperature=self.hyperparameters.temperature,
            seed=self.config.seed,
            step=step,
        )

    def _gradients(self, step: int, groups: Sequence[TrainingGroup], token_budget: int) -> TrainingStats:
        """Gradients of the whole step, micro-batch by micro-batch."""
        stats = TrainingStats()
        seed_step(self.config.seed, step)
        for batch in pack(groups, token_budget, self.policy.device):
            self._accumulate(batch, stats)
        return stats

    def _accumulate(self, batch: PackedBatch, stats: TrainingStats) -> None:
        """Forward, loss and backward of one micro-batch.

        The sampled policy is the trained one (one inner iteration, same weights), so the old
        log-probabilities are the new ones without gradient: no second pass.
        """
        settings, temperature = self.hyperparameters, self.hyperparameters.temperature
        reference_N = self.policy.reference_logprobs(batch, temperature) if settings.beta > 0 else None
        set_lora_dropout(self.policy.model, True)
        logprobs_N, entropy_N = self.policy.logprobs(batch, temperature)
        set_lora_dropout(self.policy.model, False)
        old_N = logprobs_N.detach()
        losses_N = token_losses(
            logprobs_N,
            old_N,
            batch.advantages_N,
            reference_N,
            beta=settings.beta,
            epsilon_low=settings.epsilon_low,
            epsilon_high=settings.epsilon_high,
            kl_ratio_weight=settings.kl_ratio_weight,
        )
        loss = (losses_N * batch.weights_N).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        stats.loss += float(loss.detach())
        epsilon = (settings.epsilon_low, settings.epsilon_high)
        with torch.no_grad():
            stats.add(
                old_N, old_N, batch.sampled_logprobs_N, reference_N, entropy_N, batch.advantages_N, epsilon
            )

    def _advance(self, step: int, scored_P: Sequence[ScoredGroup], *, skipped: bool) -> None:
        tokens = sum(len(c.token_ids) for scored in scored_P for c in scored.group.completions)
        self.state = replace(
            self.state,
            step=step,
            policy_version=self.state.policy_version + (0 if skipped else 1),
            num_tokens=self.state.num_tokens + tokens,
            skipped_in_a_row=self.state.skipped_in_a_row + 1 if skipped else 0,
        )

    def _skip(self, step: int, scored_P: Sequence[ScoredGroup], timer: PhaseTimer) -> StepSkipped:
        self._advance(step, scored_P, skipped=True)
        metrics = self._finish(step, scored_P, {}, timer).metrics
        return StepSkipped(step=step, reason="no_signal", metrics=metrics)

    def _refuse_silence(self, scored_P: Sequence[ScoredGroup]) -> None:
        """Raises NoSignalError where nothing was learnt for too many steps in a row."""
        count, step = self.state.skipped_in_a_row, self.state.step
        if count >= self.hyperparameters.max_skipped_steps:
            raise NoSignalError(
                f"{count} steps in a row without signal, up to step {step}",
                evidence=(f"mean reward of step {step}: {reward_metrics(scored_P)['reward']:.3f}",),
            )

    def _finish(
        self, step: int, scored_P: Sequence[ScoredGroup], training: dict[str, float], timer: PhaseTimer
    ) -> StepFinished:
        completions = [c for scored in scored_P for c in scored.group.completions]
        sampled = sum(len(completion.token_ids) for completion in completions)
        metrics = {
            **reward_metrics(scored_P),
            **completion_metrics(completions),
            **training,
            "num_tokens": float(self.state.num_tokens),
            "policy_version": float(self.state.policy_version),
            "perf/sampled_tokens_per_second": sampled / max(1e-9, timer.seconds["sample"]),
            "memory/peak_bytes": peak_memory_bytes(self.policy.device),
            **timer.metrics(),
        }
        if "train" in timer.seconds:
            metrics["perf/trained_tokens_per_second"] = sampled / max(1e-9, timer.seconds["train"])
        self.last_metrics = finite(metrics)
        return StepFinished(step=step, metrics=self.last_metrics)
