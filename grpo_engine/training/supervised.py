"""Supervised fine-tuning: cross-entropy on the assistant's last turn.

It shares packing, log-probabilities, optimiser and checkpoints with GRPO; a demonstration is a group of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from grpo_engine.config.job import RunConfig, SupervisedMethod
from grpo_engine.contract.events import BaseEvent, Evaluated, PhaseChanged, StepFinished
from grpo_engine.models.policy import Policy
from grpo_engine.objective.metrics import PhaseTimer, finite, peak_memory_bytes
from grpo_engine.objective.packing import TrainingGroup, TrainingSequence
from grpo_engine.objective.types import Prompt
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.rollout.prompt_source import PromptSource
from grpo_engine.training.loop import TrainingLoop, seed_step
from grpo_engine.training.optimizer import learning_rate_at


class SupervisedTrainer(TrainingLoop):
    def __init__(
        self,
        config: RunConfig,
        method: SupervisedMethod,
        run_dir: Path,
        policy: Policy,
        demonstrations: Sequence[Prompt],
        validation: Sequence[Prompt] = (),
    ) -> None:
        super().__init__(config, run_dir, policy, method.hyperparameters)
        self.source = PromptSource(demonstrations, method.hyperparameters.rows_per_step, config.seed)
        self.validation = validation[: method.hyperparameters.eval_rows(len(validation))]
        self.num_rows = len(demonstrations)
        self.total_steps = method.hyperparameters.total_steps(len(demonstrations))

    def step(self, step: int) -> Iterator[BaseEvent]:
        """Mean cross-entropy over all target tokens of the step's rows, one update."""
        timer = PhaseTimer()
        rows = self.source.batch(step)
        with timer.measure("train"):
            loss, entropy, tokens = self.in_pieces(lambda budget: self._gradients(step, rows, budget))
            Ranks.current().reduce(self.policy.trainable.values())
            learning_rate = learning_rate_at(step, self.total_steps, self.loop_settings)
            numbers = [row.row for row in rows]
            grad_norm = self.optimizer.step(learning_rate, loss, step=step, rows=numbers)
        self.state = replace(
            self.state,
            step=step,
            policy_version=self.state.policy_version + 1,
            num_tokens=self.state.num_tokens + tokens,
        )
        self.last_metrics = finite(
            {
                "loss": loss,
                "entropy": entropy,
                "grad_norm": grad_norm,
                "learning_rate": learning_rate,
                "num_tokens": float(self.state.num_tokens),
                "policy_version": float(self.state.policy_version),
                "perf/trained_tokens_per_second": tokens / max(1e-9, timer.seconds["train"]),
                "memory/peak_bytes": peak_memory_bytes(self.policy.device),
                **timer.metrics(),
            }
        )
        yield StepFinished(step=step, metrics=self.last_metrics)

    def evaluate(self, step: int) -> Iterator[BaseEvent]:
        """Cross-entropy of the held-out rows."""
        if not self.validation:
            return
        yield PhaseChanged(phase="evaluating", step=step)
        with torch.no_grad():
            loss, _, tokens = self._cross_entropy(self.validation, self.pieces.tokens, train=False)
        metrics = {"loss": loss, "num_tokens": float(tokens), "num_rows": float(len(self.validation))}
        yield Evaluated(step=step, metrics=finite(metrics))

    def _gradients(self, step: int, rows: Sequence[Prompt], token_budget: int) -> tuple[float, float, int]:
        seed_step(self.config.seed, step)
        with self.policy.dropout():
            return self._cross_entropy(rows, token_budget, train=True)

    def _cross_entropy(
        self, rows: Sequence[Prompt], token_budget: int, *, train: bool
    ) -> tuple[float, float, int]:
        """Mean loss and entropy per target token of all ranks, and their number; gradients where `train`."""
        ranks = Ranks.current()
        tokens = sum(len(row.target_ids) for row in rows)
        groups = [_demonstration_group(row, 1.0 / tokens) for row in rows]
        own, idle = ranks.passes(groups, token_budget, self.policy.model, self.policy.device)
        loss = entropy = 0.0
        for batch in [*own, *idle]:
            logprobs_N, entropy_N = self.policy.logprobs(batch)
            piece = -(logprobs_N * batch.weights_N).sum()
            if train:
                piece.backward()  # type: ignore[no-untyped-call]
            loss += float(piece.detach())
            entropy += float((entropy_N * (batch.weights_N > 0)).sum()) / tokens
        loss, entropy = (sum(ranks.gather(value)) for value in (loss, entropy))
        return loss, entropy, tokens


def _demonstration_group(row: Prompt, token_weight: float) -> TrainingGroup:
    blank = (0.0,) * len(row.target_ids)
    return TrainingGroup(row.token_ids, (TrainingSequence(row.target_ids, blank, blank, token_weight),))
