"""GRPO: the order of a training step.

DeepSeekMath (arXiv 2402.03300) §4: sample a group per prompt, score it, use the group's mean and standard
deviation as the baseline, update with the clipped surrogate and the KL to a frozen reference.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from grpo_engine.config.job import ReinforcementMethod, RunConfig
from grpo_engine.config.tools import function_schemas
from grpo_engine.contract.events import BaseEvent, StepFinished, StepSkipped, Warned
from grpo_engine.graders.pool.pool import Grading
from grpo_engine.models.policy import Policy
from grpo_engine.objective.loss import adapted_beta
from grpo_engine.objective.metrics import PhaseTimer, finite, mean_metrics, step_metrics, tool_metrics
from grpo_engine.objective.packing import training_groups
from grpo_engine.objective.types import GradedGroup, Prompt, ScoredGroup
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.rollout.collector import sampling_of
from grpo_engine.rollout.dataset import RowReader
from grpo_engine.rollout.evaluation import HeldOutSet, Rewards, evaluate_sets
from grpo_engine.rollout.overlap.one_step_ahead import open_rollouts
from grpo_engine.rollout.prompt_source import ORDERS
from grpo_engine.rollout.recording import rollouts
from grpo_engine.rollout.sampler.base import Sampler, sampler_name
from grpo_engine.rollout.scoring import prompt_outcomes, with_advantages, with_zero_advantages
from grpo_engine.rollout.tools.listing import changed_tools, digests_of
from grpo_engine.training.gradients import PolicyGradient, with_kl_penalties
from grpo_engine.training.method import Method, MethodState
from grpo_engine.training.micro_batch_budget import longest_group
from grpo_engine.training.policy_updater import PolicyUpdater, seed_step
from grpo_engine.training.self_distillation import DistillationTerm, distillation_terms
from grpo_engine.training.skipped_steps import fail_without_signal, skip_reason

LossTerm = PolicyGradient | DistillationTerm


@dataclass(frozen=True, slots=True)
class ReinforcementState(MethodState):
    """The trainer's part of a run's state, beside weights and moments.

    Seeds and (without a curriculum) the prompts' order depend on (seed, step) only, so neither is stored.
    """

    skipped_in_a_row: int = 0
    beta: float | None = None
    """Current beta if it was adapted or raised; None: the configured one."""
    prompts: dict[str, Any] = field(default_factory=dict)
    """State of the prompt source."""
    baseline: Mapping[str, Rewards] = field(default_factory=dict)
    """Evaluated set → row → reward before step 1; unscorable rows are left out."""
    listed_tools: Mapping[str, str] | None = None
    """Tools that MCP servers listed: name → digest. None: an older release wrote the checkpoint."""


class Trainer(Method):
    def __init__(
        self,
        config: RunConfig,
        method: ReinforcementMethod,
        policy: Policy,
        sampler: Sampler,
        grading: Grading,
        prompts: Sequence[Prompt],
        held_out: Sequence[HeldOutSet] = (),
    ) -> None:
        self.seed = config.seed
        self.hyperparameters = method.hyperparameters
        self.grader = method.grader
        self.tools = method.tools
        self.policy = policy
        self.sampler = sampler
        self.grading = grading
        self.prompts = prompts
        self.held_out = held_out
        self.has_held_out_rows = bool(held_out)
        self.total_steps = self.hyperparameters.total_steps(len(prompts))
        self.updater = PolicyUpdater(
            policy, self.hyperparameters, config.runtime.token_budget, self.total_steps
        )
        self.updater.budget.add_prompt(max(len(prompt.token_ids) for prompt in prompts))
        self.reader = RowReader(policy.tokenizer, config.created_at, function_schemas(method.tools))
        self.num_rows = len(prompts)
        self.sampler_name = sampler_name(sampler)
        self.state: ReinforcementState = ReinforcementState(listed_tools=digests_of(method.tools))
        order = ORDERS[self.hyperparameters.curriculum]
        self.source, self.collector = open_rollouts(
            method,
            policy,
            sampler,
            grading,
            lambda: order(prompts, self.hyperparameters.prompts_per_step, config.seed),
            total_steps=self.total_steps,
            version=lambda: self.state.policy_version,
        )

    @property
    def beta(self) -> float:
        """Current weight of the KL term: as configured, adapted or raised."""
        return self.hyperparameters.beta if self.state.beta is None else self.state.beta

    def raise_beta(self) -> float:
        """Double the weight of the KL term and return it."""
        self.state = replace(self.state, beta=2 * self.beta)
        return self.beta

    def prepare(self) -> None:
        """Find a token budget that fits the GPU while the sampler rests, as it does in every step."""
        if self.policy.device.type == "cuda":
            self.sampler.rest()
            self.probe_memory()

    def probe_memory(self) -> None:
        """Run a forward and backward pass over as many of the largest possible groups as fit in one pass."""
        settings = self.hyperparameters
        group = longest_group(self.prompts, settings.group_size, settings.max_completion_tokens)
        together = min(settings.prompts_per_step, max(1, self.updater.budget.tokens // group.num_tokens))
        groups = [group] * (together * Ranks.current().world)
        term = PolicyGradient(self.policy, settings, groups, beta=self.beta, correction="none")
        self.updater.in_micro_batches(1, term)
        self.updater.optimizer.clear()

    def step(self, step: int) -> Iterator[BaseEvent]:
        """Sample and score groups, compute advantages, train. The next step samples from the result."""
        timer = PhaseTimer()
        self.sampler.load_policy(self.state.policy_version)
        step_groups = self.collector.collect(step, sampling_of(self.hyperparameters, self.seed, step), timer)
        rested = self.sampler.rest()
        scored_P, metrics = self._with_advantages(step, step_groups.groups, timer)
        all_scored = [*scored_P, *map(with_zero_advantages, step_groups.discarded)]
        yield from rollouts(step, all_scored)
        terms = self._terms(scored_P)
        if terms:
            with timer.measure("train"):
                metrics |= self._update(step, terms, scored_P)
        self._advance(all_scored, metrics, trained=bool(terms))
        metrics |= {**rested, "sampling/discarded_groups": float(len(step_groups.discarded))}
        yield self._step_event(step, all_scored, metrics, timer)
        yield from self.updater.budget.take_warnings()
        fail_without_signal(step, self.state.skipped_in_a_row, scored_P, self.hyperparameters)

    def _with_advantages(
        self, step: int, groups_P: Sequence[GradedGroup], timer: PhaseTimer
    ) -> tuple[list[ScoredGroup], dict[str, float]]:
        """The groups with their advantages; `kl_placement: reward` subtracts the KL from the rewards."""
        settings, metrics = self.hyperparameters, {}
        if self.beta > 0 and settings.kl_placement == "reward":
            with timer.measure("reference"):
                groups_P, metrics["kl"] = self.updater.in_micro_batches(
                    step, partial(with_kl_penalties, self.policy, groups_P, settings, self.beta)
                )
        weights = getattr(self.grader, "weights", None)
        return with_advantages(groups_P, settings, self.policy.decode, weights=weights), metrics

    def _terms(self, scored_P: Sequence[ScoredGroup]) -> list[LossTerm]:
        """Loss terms of the step; none if no group has signal."""
        settings = self.hyperparameters
        groups = training_groups(scored_P, settings)
        terms: list[LossTerm] = []
        if groups and not (settings.self_distillation and settings.self_distillation.alone):
            terms.append(
                PolicyGradient(
                    self.policy,
                    settings,
                    groups,
                    beta=self.beta,
                    correction=self._correction(),
                    off_policy=self._is_off_policy(scored_P),
                )
            )
        return [*terms, *distillation_terms(self.policy, settings, scored_P, self.reader.rewritten)]

    def _is_off_policy(self, scored_P: Sequence[ScoredGroup]) -> bool:
        """Whether an older policy sampled the step's completions, which only `max_staleness` allows."""
        versions = {each.policy_version for scored in scored_P for each in scored.group.completions}
        return bool(self.hyperparameters.max_staleness) and versions != {self.state.policy_version}

    def _correction(self) -> str:
        """The configured correction, or the one that `auto` selects.

        Only the torch sampler in float32 needs none, because it gives the trainer's log-probabilities. In
        bfloat16 it rounds differently. The errors of a long completion add up, so a ratio per completion
        would exclude many completions; the ratio of a token stays close to 1.
        """
        configured = self.hyperparameters.importance_correction
        if configured != "auto":
            return configured
        if not self.sampler.matches_trainer:
            return "sequence_mask"
        return "none" if self.policy.compute_dtype == torch.float32 else "token_truncate"

    def _update(
        self, step: int, terms: Sequence[LossTerm], scored_P: Sequence[ScoredGroup]
    ) -> dict[str, float]:
        """Make `num_iterations` optimiser steps on the same completions. Returns their mean metrics."""
        rows = [scored.group.prompt.row for scored in scored_P]
        done = [
            self.updater.update(step, partial(self._gradients, step, iteration, terms), rows)
            for iteration in range(self.hyperparameters.num_iterations)
        ]
        return {
            **mean_metrics(done),
            "learning_rate": done[0]["learning_rate"],
            "beta": self.beta,
            "num_trained_tokens": float(len(done) * sum(term.num_tokens for term in terms)),
        }

    def _gradients(
        self, step: int, iteration: int, terms: Sequence[LossTerm], token_budget: int
    ) -> dict[str, float]:
        """Sum the gradients and losses of all terms. Returns metrics; the first term's take precedence."""
        seed_step(self.seed, step, iteration)
        found = [term(token_budget) for term in terms]
        metrics = {name: value for each in reversed(found) for name, value in each.items()}
        return {**metrics, "loss": sum(each["loss"] for each in found)}

    def evaluate(self, step: int) -> Iterator[BaseEvent]:
        """Sample and score the held-out rows and the retention sets; compare with the baseline."""
        self.sampler.load_policy(self.state.policy_version)
        sampling = sampling_of(self.hyperparameters, self.seed, step)
        temperature = self.hyperparameters.eval_temperature
        sampling = replace(sampling, temperature=temperature, same_tasks=True)
        baseline = yield from evaluate_sets(step, self.held_out, self.sampler, sampling, self.state.baseline)
        self.state = replace(self.state, baseline=baseline)

    def _advance(self, scored: Sequence[ScoredGroup], metrics: Mapping[str, float], *, trained: bool) -> None:
        """Set the state after the step; updates the prompt source and an adaptive beta."""
        settings, beta = self.hyperparameters, self.state.beta
        completions = [each for group in scored for each in group.group.completions]
        if settings.kl_target is not None and "kl" in metrics:
            beta = adapted_beta(
                self.beta, metrics["kl"], settings.kl_target, settings.kl_horizon, len(completions)
            )
        self.source.observe(prompt_outcomes(scored))
        self.state = replace(
            self.state,
            policy_version=self.state.policy_version + int(trained),
            num_tokens=self.state.num_tokens + sum(len(each.token_ids) for each in completions),
            skipped_in_a_row=0 if trained else self.state.skipped_in_a_row + 1,
            beta=beta,
            prompts=self.source.state,
        )

    def _step_event(
        self, step: int, scored: Sequence[ScoredGroup], metrics: Mapping[str, float], timer: PhaseTimer
    ) -> StepFinished | StepSkipped:
        """The step's metrics; StepSkipped with the reason if nothing was trained."""
        own = self.state.metrics() | self.source.metrics()
        if self.tools:
            own |= tool_metrics([each for group in scored for each in group.group.completions])
        trained = "train" in timer.seconds
        if trained:
            speed = metrics["num_trained_tokens"] / max(1e-9, timer.seconds["train"])
            own["perf/trained_tokens_per_second"] = speed
        everything = finite({**step_metrics(scored, timer, self.policy.device), **metrics, **own})
        if trained:
            return StepFinished(step=step, metrics=everything)
        return StepSkipped(step=step, reason=skip_reason(scored, self.hyperparameters), metrics=everything)

    def load_state(self, state: Mapping[str, Any]) -> list[Warned]:
        super().load_state(state)
        self.source.load(self.state.prompts)
        before, now = self.state.listed_tools, digests_of(self.tools)
        self.state = replace(self.state, listed_tools=now)
        return [] if before is None else changed_tools(before, now)

    def close(self) -> None:
        for grading in {self.grading, *(held_out.grading for held_out in self.held_out)}:
            grading.close()
