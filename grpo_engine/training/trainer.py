"""GRPO: the only file that knows the order of a step.

DeepSeekMath (arXiv 2402.03300) §4: sample a group per prompt, score it, take its own mean and spread as the
baseline, update with the clipped surrogate and the KL to a frozen reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from grpo_engine.config.job import ReinforcementMethod, RunConfig
from grpo_engine.config.tools import function_schemas
from grpo_engine.contract.errors import NoSignalError
from grpo_engine.contract.events import BaseEvent, PhaseChanged, SkipReason, StepFinished, StepSkipped
from grpo_engine.graders.pool.pool import Grading
from grpo_engine.models.policy import Policy
from grpo_engine.objective.loss import adapted_beta
from grpo_engine.objective.metrics import PhaseTimer, finite, mean_metrics, reward_metrics, step_metrics
from grpo_engine.objective.packing import training_groups
from grpo_engine.objective.types import GradedGroup, Prompt, ScoredGroup
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.rollout.collector import Collected, sampling_of
from grpo_engine.rollout.dataset import RowReader
from grpo_engine.rollout.evaluation import HeldOut, evaluate_sets
from grpo_engine.rollout.overlap.one_step_ahead import open_collector
from grpo_engine.rollout.prompt_source import PromptSource, RestingSource
from grpo_engine.rollout.sampler.base import Sampler, Sampling
from grpo_engine.rollout.scoring import compare, outcomes, rollouts, without_signal
from grpo_engine.rollout.tools.metrics import tool_metrics
from grpo_engine.training.gradients import PolicyGradient, Term, kl_penalties
from grpo_engine.training.loop import TrainingLoop, seed_step
from grpo_engine.training.micro_batch_budget import longest_group
from grpo_engine.training.optimizer import learning_rate_at
from grpo_engine.training.self_distillation import distillation_terms

SKIP_CAUSES: dict[SkipReason, str] = {
    "no_signal": "without signal",
    "all_masked": "whose completions were all masked",
    "nothing_to_distil": "without an attempt to distil",
}
SKIP_HINTS: dict[SkipReason, str] = {
    "all_masked": "Every completion was cut, and mask_truncated_completions leaves cut ones out: raise "
    "max_completion_tokens or set it to false.",
    "nothing_to_distil": "No attempt failed with something to tell about it: self_distillation.alone needs a "
    "grader with feedback or successful siblings; raise success_reward or set alone to false.",
}
"""What to do where a step had signal and still nothing could be trained."""


class Trainer(TrainingLoop):
    def __init__(
        self,
        config: RunConfig,
        method: ReinforcementMethod,
        run_dir: Path,
        policy: Policy,
        sampler: Sampler,
        grading: Grading,
        prompts: Sequence[Prompt],
        held_out: Sequence[HeldOut] = (),
    ) -> None:
        super().__init__(config, run_dir, policy, method.hyperparameters)
        self.hyperparameters = method.hyperparameters
        self.grader = method.grader
        self.tools = method.tools
        self.sampler = sampler
        self.sampler_name = type(sampler).__name__
        self.grading = grading
        self.total_steps = self.hyperparameters.total_steps(len(prompts))
        order = RestingSource if self.hyperparameters.curriculum == "rest" else PromptSource
        self.source, self.collector = open_collector(
            method,
            policy,
            sampler,
            grading,
            lambda: order(prompts, self.hyperparameters.prompts_per_step, config.seed),
            total_steps=self.total_steps,
            version=lambda: self.state.policy_version,
        )
        self.reader = RowReader(policy.tokenizer, config.created_at, function_schemas(method.tools))
        self.held_out = held_out
        self.guards = self.hyperparameters.guards
        self.early_stopping = self.hyperparameters.early_stopping
        self.prompts = prompts
        self.pieces.make_room(max(len(prompt.token_ids) for prompt in prompts))
        self.num_rows = len(prompts)

    @property
    def beta(self) -> float:
        """Weight of the KL term now: as configured, adapted or raised."""
        return self.hyperparameters.beta if self.state.beta is None else self.state.beta

    def probe_memory(self) -> None:
        """The forward and backward of the largest groups that this run can meet, as many as a pass takes."""
        settings = self.hyperparameters
        group = longest_group(self.prompts, settings.group_size, settings.max_completion_tokens)
        together = min(settings.prompts_per_step, max(1, self.pieces.tokens // group.num_tokens))
        groups = [group] * (together * Ranks.current().world)
        self.in_pieces(PolicyGradient(self.policy, settings, groups, beta=self.beta, correction="none"))
        self.optimizer.clear()

    def step(self, step: int) -> Iterator[BaseEvent]:
        """Sample and score, compare, train, hand the new policy to the sampler."""
        timer = PhaseTimer()
        self.sampler.load_policy(self.state.policy_version)
        self.source.load(self.state.prompts)
        collected = self.collector.collect(step, self._sampling(step), timer)
        self.sampler.rest()
        scored_P, metrics = self._compare(collected.groups, timer)
        everything = [*scored_P, *map(without_signal, collected.discarded)]
        yield from rollouts(step, everything)
        terms = self._terms(scored_P)
        if terms:
            with timer.measure("train"):
                metrics |= self._update(step, terms, scored_P)
        self._advance(step, everything, metrics, trained=bool(terms))
        yield self._finish(step, everything, collected, metrics, timer)
        self._refuse_silence(scored_P)

    def _compare(
        self, groups_P: Sequence[GradedGroup], timer: PhaseTimer
    ) -> tuple[list[ScoredGroup], dict[str, float]]:
        """Advantages of the step's groups, the KL taken from the rewards where the job says so."""
        settings = self.hyperparameters
        weights, metrics, penalties = getattr(self.grader, "weights", None), {}, None
        if self.beta > 0 and settings.kl_placement == "reward":
            with timer.measure("reference"):
                penalties, metrics["kl"] = self.in_pieces(
                    lambda budget: kl_penalties(self.policy, groups_P, settings, self.beta, budget)
                )
        decode = self.policy.decode
        return compare(groups_P, settings, decode, weights=weights, penalties_P=penalties), metrics

    def _terms(self, scored_P: Sequence[ScoredGroup]) -> list[Term]:
        """What moves the weights in this step; nothing where no group has signal."""
        settings = self.hyperparameters
        groups = training_groups(scored_P, settings)
        terms: list[Term] = []
        if groups and not (settings.self_distillation and settings.self_distillation.alone):
            correction, behind = self._correction(), self._lags_behind(scored_P)
            terms.append(
                PolicyGradient(
                    self.policy, settings, groups, beta=self.beta, correction=correction, off_policy=behind
                )
            )
        return [*terms, *distillation_terms(self.policy, settings, scored_P, self.reader.retold)]

    def _lags_behind(self, scored_P: Sequence[ScoredGroup]) -> bool:
        """Whether an older policy sampled the step's rollouts; only where the job allows it."""
        versions = {each.policy_version for scored in scored_P for each in scored.group.completions}
        return bool(self.hyperparameters.max_staleness) and versions != {self.state.policy_version}

    def _correction(self) -> str:
        """The torch sampler computes as the trainer does, so `auto` corrects nothing there."""
        configured = self.hyperparameters.importance_correction
        if configured != "auto":
            return configured
        return "none" if self.sampler.shares_weights else "sequence_mask"

    def _update(self, step: int, terms: Sequence[Term], scored_P: Sequence[ScoredGroup]) -> dict[str, float]:
        """`num_iterations` optimiser steps on the same completions; means of their metrics."""
        learning_rate = learning_rate_at(step, self.total_steps, self.hyperparameters)
        rows = [scored.group.prompt.row for scored in scored_P]
        done = []
        for iteration in range(self.hyperparameters.num_iterations):
            found = self.in_pieces(partial(self._gradients, step, iteration, terms))
            Ranks.current().reduce(self.policy.trainable.values())
            grad_norm = self.optimizer.step(learning_rate, found["loss"], step=step, rows=rows)
            done.append({**found, "grad_norm": grad_norm})
        trained = float(len(done) * sum(term.num_tokens for term in terms))
        told = {"learning_rate": learning_rate, "beta": self.beta, "num_trained_tokens": trained}
        return {**mean_metrics(done), **told}

    def _gradients(
        self, step: int, iteration: int, terms: Sequence[Term], token_budget: int
    ) -> dict[str, float]:
        """Gradients of every term; their losses add up."""
        seed_step(self.config.seed, step, iteration)
        metrics: dict[str, float] = {}
        loss = 0.0
        for term in terms:
            found = term(token_budget)
            loss += found["loss"]
            metrics |= found
        return {**metrics, "loss": loss}

    def evaluate(self, step: int) -> Iterator[BaseEvent]:
        """Completions of the held-out rows and of the retention sets, scored and compared."""
        if not self.held_out:
            return
        yield PhaseChanged(phase="evaluating", step=step)
        self.sampler.load_policy(self.state.policy_version)
        sampling = replace(self._sampling(step), temperature=self.hyperparameters.eval_temperature)
        known = self.state.baseline
        baseline = yield from evaluate_sets(step, self.held_out, self.sampler, sampling, known)
        self.state = replace(self.state, baseline=baseline)

    def raise_beta(self) -> float:
        self.state = replace(self.state, beta=2 * self.beta)
        return self.beta

    def _sampling(self, step: int) -> Sampling:
        return sampling_of(self.hyperparameters, self.config.seed, step)

    def _advance(
        self, step: int, scored: Sequence[ScoredGroup], metrics: dict[str, float], *, trained: bool
    ) -> None:
        """The state after the step; the prompt source and an adaptive beta learn from it."""
        settings, beta = self.hyperparameters, self.state.beta
        count = sum(len(each.group.completions) for each in scored)
        if settings.kl_target is not None and "kl" in metrics:
            beta = adapted_beta(self.beta, metrics["kl"], settings.kl_target, settings.kl_horizon, count)
        self.source.observe(outcomes(scored))
        tokens = sum(len(c.token_ids) for each in scored for c in each.group.completions)
        self.state = replace(
            self.state,
            step=step,
            policy_version=self.state.policy_version + int(trained),
            num_tokens=self.state.num_tokens + tokens,
            skipped_in_a_row=0 if trained else self.state.skipped_in_a_row + 1,
            beta=beta,
            prompts=self.source.state,
        )

    def _refuse_silence(self, scored_P: Sequence[ScoredGroup]) -> None:
        """Raises NoSignalError where nothing was learnt for too many steps in a row."""
        count, step = self.state.skipped_in_a_row, self.state.step
        if count >= self.hyperparameters.max_skipped_steps:
            reason = self._why_skipped(scored_P)
            raise NoSignalError(
                f"{count} steps in a row {SKIP_CAUSES[reason]}, up to step {step}",
                hint=SKIP_HINTS.get(reason),
                evidence=(f"mean reward of step {step}: {reward_metrics(scored_P)['reward']:.3f}",),
            )

    def _why_skipped(self, scored: Sequence[ScoredGroup]) -> SkipReason:
        if not any(each.has_signal for each in scored):
            return "no_signal"
        distillation = self.hyperparameters.self_distillation
        return "nothing_to_distil" if distillation and distillation.alone else "all_masked"

    def _finish(
        self,
        step: int,
        scored: Sequence[ScoredGroup],
        collected: Collected,
        training: dict[str, float],
        timer: PhaseTimer,
    ) -> StepFinished | StepSkipped:
        """The step's event; one that trained nothing is skipped and says so."""
        own = {
            "num_tokens": float(self.state.num_tokens),
            "policy_version": float(self.state.policy_version),
            "sampling/discarded_groups": float(len(collected.discarded)),
            **self.source.metrics(),
        }
        if self.tools:
            own |= tool_metrics([each for group in scored for each in group.group.completions])
        if "train" in timer.seconds:
            speed = training["num_trained_tokens"] / max(1e-9, timer.seconds["train"])
            own["perf/trained_tokens_per_second"] = speed
        metrics = {**step_metrics(scored, timer, self.policy.device), **training, **own}
        self.last_metrics = finite(metrics)
        if "train" in timer.seconds:
            return StepFinished(step=step, metrics=self.last_metrics)
        return StepSkipped(step=step, reason=self._why_skipped(scored), metrics=self.last_metrics)

    def close(self) -> None:
        for grading in {self.grading, *(held_out.grading for held_out in self.held_out)}:
            grading.close()
