"""Supervised fine-tuning: cross-entropy on the assistant's last turn.

It shares packing, log-probabilities and the updater with GRPO. A demonstration is a group of one completion.
"""

from collections.abc import Iterator, Sequence

import torch

from grpo_engine.config.job import RunConfig, SupervisedMethod
from grpo_engine.contract.events import BaseEvent, Evaluated, StepFinished
from grpo_engine.models.policy import Policy
from grpo_engine.objective.metrics import PhaseTimer, finite, numbers, peak_memory_bytes
from grpo_engine.objective.packing import TrainingGroup
from grpo_engine.objective.types import Prompt
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.rollout.prompt_source import PromptSource
from grpo_engine.training.method import Method, MethodState
from grpo_engine.training.policy_updater import PolicyUpdater, seed_step


class SupervisedTrainer(Method):
    def __init__(
        self,
        config: RunConfig,
        method: SupervisedMethod,
        policy: Policy,
        demonstrations: Sequence[Prompt],
        validation: Sequence[Prompt] = (),
    ) -> None:
        settings = method.hyperparameters
        self.seed = config.seed
        self.policy = policy
        self.source = PromptSource(demonstrations, settings.rows_per_step, config.seed)
        self.validation = validation[: settings.eval_rows(len(validation))]
        self.has_held_out_rows = bool(self.validation)
        self.total_steps = settings.total_steps(len(demonstrations))
        self.updater = PolicyUpdater(policy, settings, config.runtime.token_budget, self.total_steps)
        self.num_rows = len(demonstrations)
        self.state = MethodState()

    def step(self, step: int) -> Iterator[BaseEvent]:
        """One update by the mean cross-entropy over all target tokens of the step's rows."""
        timer = PhaseTimer()
        rows = self.source.batch(step)
        with timer.measure("train"):
            metrics = self.updater.update(
                step, lambda budget: self._gradients(step, rows, budget), [row.row for row in rows]
            )
        tokens = sum(len(row.target_ids) for row in rows)
        self.state = MethodState(self.state.policy_version + 1, self.state.num_tokens + tokens)
        own = {
            **self.state.metrics(),
            "perf/trained_tokens_per_second": tokens / max(1e-9, timer.seconds["train"]),
            "memory/peak_bytes": peak_memory_bytes(self.policy.device),
        }
        yield StepFinished(step=step, metrics=finite({**metrics, **own, **timer.metrics()}))
        yield from self.updater.budget.take_warnings()

    def evaluate(self, step: int) -> Iterator[BaseEvent]:
        with torch.no_grad():
            loss = self._cross_entropy(self.validation, self.updater.budget.tokens, train=False)["loss"]
        tokens = sum(len(row.target_ids) for row in self.validation)
        metrics = {"loss": loss, "num_tokens": float(tokens), "num_rows": float(len(self.validation))}
        yield Evaluated(step=step, metrics=finite(metrics))

    def _gradients(self, step: int, rows: Sequence[Prompt], token_budget: int) -> dict[str, float]:
        seed_step(self.seed, step)
        with self.policy.dropout():
            return self._cross_entropy(rows, token_budget, train=True)

    def _cross_entropy(self, rows: Sequence[Prompt], token_budget: int, *, train: bool) -> dict[str, float]:
        """Mean loss and entropy per target token of all ranks, in nats; adds gradients if `train`."""
        ranks = Ranks.current()
        tokens = sum(len(row.target_ids) for row in rows)
        groups = [TrainingGroup.of(row.token_ids, row.target_ids, weight=1.0 / tokens) for row in rows]
        own, idle = ranks.passes(groups, token_budget, self.policy.model, self.policy.device)
        losses, entropies = [], []
        for batch in [*own, *idle]:
            logprobs_N, entropy_N = self.policy.logprobs(batch)
            share = -(logprobs_N * batch.weights_N).sum()
            if train:
                share.backward()  # type: ignore[no-untyped-call]
            losses.append(share.detach())
            entropies.append((entropy_N.detach() * (batch.weights_N > 0)).sum())
        found = numbers([*losses, *entropies])
        loss, entropy = sum(found[: len(losses)]), sum(each / tokens for each in found[len(losses) :])
        return {"loss": sum(ranks.gather(loss)), "entropy": sum(ranks.gather(entropy))}
