"""Gradients of one optimiser step, one micro-batch after another.

Boundary: no sampling, no scoring, no optimiser step. Gradients accumulate on the parameters.
"""

import itertools
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace

import numpy as np
import torch
from torch import Tensor

from grpo_engine.config.reinforcement import ReinforcementHyperparameters
from grpo_engine.models.policy import Policy
from grpo_engine.objective.loss import importance_weights, kl_estimate, kl_losses, policy_losses
from grpo_engine.objective.metrics import batch_numbers, numbers, read_numbers, training_metrics
from grpo_engine.objective.packing import TrainingGroup, TrainingSequence, pack
from grpo_engine.objective.types import GradedGroup, PackedBatch
from grpo_engine.parallel.ranks import Ranks


class TokenValues:
    """Values per trained token that a step computes once and later inner iterations reuse.

    They are stored per completion, so that another packing (after an out-of-memory error) finds them.
    """

    def __init__(self) -> None:
        self._values: dict[str, dict[int, Tensor]] = {}

    def store(self, name: str, batch: PackedBatch, values_N: Tensor) -> None:
        pieces = values_N.detach().split(batch.num_trained)
        self._values.setdefault(name, {}).update(zip(batch.indices, pieces, strict=True))

    def values(self, name: str) -> dict[int, Tensor]:
        """Index of each completion → values of its trained tokens."""
        return self._values.get(name, {})

    def find(self, name: str, batch: PackedBatch) -> Tensor | None:
        """[N] values of the batch's tokens; None unless all of them are stored."""
        stored = self.values(name)
        if not all(index in stored for index in batch.indices):
            return None
        return torch.cat([stored[index] for index in batch.indices])


@dataclass(eq=False)
class PolicyGradient:
    """The GRPO loss over a step's groups; called once for each inner iteration."""

    policy: Policy
    hyperparameters: ReinforcementHyperparameters
    groups: Sequence[TrainingGroup]
    _: KW_ONLY
    beta: float
    correction: str
    off_policy: bool = False
    """Whether an older policy sampled; the log-probabilities that it recorded are then the old ones."""

    def __post_init__(self) -> None:
        self.ranks = Ranks.current()
        self.token_values = TokenValues()
        self.kl_in_loss = self.beta > 0 and self.hyperparameters.kl_placement != "reward"
        self.threshold: tuple[float, int] | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens that contribute to the loss."""
        return sum(group.num_trained for group in self.groups)

    def __call__(self, token_budget: int) -> dict[str, float]:
        """Forward, loss and backward of this rank's micro-batches; returns metrics over all ranks."""
        # Kept for a repetition after an out-of-memory error, because ranks exchange it once per iteration.
        self.threshold = self.threshold or self._threshold(token_budget)
        own, idle = self._passes(token_budget)
        found = [self._accumulate(batch) for batch in own]
        for batch in idle:
            self._keep_pace(batch)
        self.threshold = None
        return training_metrics(self.ranks.joined(read_numbers(found)))

    def _passes(self, token_budget: int) -> tuple[list[PackedBatch], list[PackedBatch]]:
        """This rank's micro-batches, and idle ones that keep sharded ranks in step."""
        return self.ranks.passes(self.groups, token_budget, self.policy.model, self.policy.device)

    def _keep_pace(self, batch: PackedBatch) -> None:
        """Run the passes of an idle micro-batch; other ranks need this rank's share of the weights."""
        if self.kl_in_loss:
            self._reference(batch)
        logprobs_N, _ = self.policy.logprobs(batch)
        (0.0 * logprobs_N.sum()).backward()  # type: ignore[no-untyped-call]

    def _accumulate(self, batch: PackedBatch) -> dict[str, Tensor]:
        """Add a micro-batch's gradients; returns its `batch_numbers`."""
        settings = self.hyperparameters
        reference_N = self._reference(batch) if self.kl_in_loss else None
        with self.policy.dropout():
            logprobs_N, entropy_N = self.policy.logprobs(
                batch, settings.temperature, entropy_gradient=settings.entropy_coef > 0
            )
        old_N = self._old(batch, logprobs_N)
        chosen_N, num_chosen = self._chosen(batch)
        weights_N = self._weights(batch, old_N, chosen_N)
        losses_N = policy_losses(logprobs_N, old_N, batch.advantages_N, batch.sequences_N, settings)
        loss = (losses_N * weights_N).sum()
        if reference_N is not None:
            kl_N = kl_losses(logprobs_N, old_N, reference_N, batch.sequences_N, settings)
            loss = loss + (self.beta * kl_N * batch.kl_weights_N).sum()
        if settings.entropy_coef:
            bonus_N = entropy_N if chosen_N is None else entropy_N * chosen_N
            loss = loss - settings.entropy_coef * bonus_N.sum() / max(1, num_chosen)
        loss.backward()  # type: ignore[no-untyped-call]
        given = loss.detach(), logprobs_N.detach(), old_N, reference_N, entropy_N.detach()
        return batch_numbers(batch, *given, settings)

    def _chosen(self, batch: PackedBatch) -> tuple[Tensor | None, int]:
        """[N] 1 for trained tokens, 0 for others (None: all are trained); and the step's number of trained
        tokens."""
        if self.threshold is None:
            return None, self.num_tokens
        entropy_N = self.token_values.find("entropy", batch)
        assert entropy_N is not None
        threshold, count = self.threshold
        return (entropy_N.double() >= threshold).float(), count

    def _old(self, batch: PackedBatch, logprobs_N: Tensor) -> Tensor:
        """[N] log-probabilities under the policy that sampled.

        In the first inner iteration, the trained policy sampled (same weights, same numerics), so the new
        values without gradient are returned, and stored if more iterations follow. An older policy recorded
        its own.
        """
        if self.off_policy:
            return batch.sampled_logprobs_N
        stored = self.token_values.find("old", batch)
        if stored is not None:
            return stored
        if self.hyperparameters.num_iterations > 1:
            self.token_values.store("old", batch, logprobs_N)
        return logprobs_N.detach()

    def _weights(self, batch: PackedBatch, old_N: Tensor, chosen_N: Tensor | None) -> Tensor:
        """[N] weight of each token in the policy loss: normaliser, token selection, sampler correction."""
        weights_N = batch.weights_N if chosen_N is None else batch.weights_N * chosen_N
        if self.correction == "none":
            return weights_N
        sampled_N, cap = batch.sampled_logprobs_N, self.hyperparameters.importance_cap
        return weights_N * importance_weights(old_N, sampled_N, batch.sequences_N, self.correction, cap)

    def _reference(self, batch: PackedBatch) -> Tensor:
        """[N] log-probabilities under the frozen reference, computed once per step."""
        stored = self.token_values.find("reference", batch)
        if stored is not None:
            return stored
        reference_N = self.policy.reference_logprobs(batch, self.hyperparameters.temperature)
        if self.hyperparameters.num_iterations > 1:
            self.token_values.store("reference", batch, reference_N)
        return reference_N

    def _threshold(self, token_budget: int) -> tuple[float, int] | None:
        """The least entropy of a token that is trained, and the number of such tokens in the step.

        None unless `top_entropy_quantile` restricts the loss. Source: Beyond the 80/20 rule (arXiv
        2506.01939).
        """
        share = self.hyperparameters.top_entropy_quantile
        if share >= 1:
            return None
        found: list[Tensor] = []
        with torch.no_grad():
            own, idle = self._passes(token_budget)
            for batch in own:
                entropy_N = self.policy.logprobs(batch, self.hyperparameters.temperature)[1]
                self.token_values.store("entropy", batch, entropy_N)
                found.append(entropy_N.double())
            for batch in idle:
                self.policy.logprobs(batch)
        own_N = torch.cat(found).cpu().numpy() if found else np.empty(0)
        values_N = np.concatenate(self.ranks.gather(own_N))
        threshold = float(np.quantile(values_N, 1 - share))
        return threshold, int((values_N >= threshold).sum())


def with_kl_penalties(
    policy: Policy,
    groups_P: Sequence[GradedGroup],
    hyperparameters: ReinforcementHyperparameters,
    beta: float,
    token_budget: int,
) -> tuple[list[GradedGroup], float]:
    """The groups with β · KL of each completion, summed over its tokens; and the mean KL per token, in nats.

    As in InstructGPT and DeepSeek-R1, it is to be subtracted from the reward and has no gradient of its own.
    """
    temperature, estimator = hyperparameters.temperature, hyperparameters.kl_estimator
    token_values, indices = TokenValues(), itertools.count()
    # A session that failed before its first turn has no tokens, and no place in a packed row.
    parts_PG = [
        [
            TrainingSequence.unweighted(each, next(indices)).split(each.row_starts, indices)
            if each.token_ids
            else []
            for each in graded.group.completions
        ]
        for graded in groups_P
    ]
    training = [
        TrainingGroup(graded.group.prompt.token_ids, tuple(itertools.chain(*parts_G)))
        for graded, parts_G in zip(groups_P, parts_PG, strict=True)
    ]
    with torch.no_grad():
        for batch in pack(training, token_budget, policy.device):
            logprobs_N, _ = policy.logprobs(batch, temperature)
            reference_N = policy.reference_logprobs(batch, temperature)
            token_values.store("kl", batch, kl_estimate(logprobs_N, reference_N, estimator))
    kl = token_values.values("kl")
    totals = dict(zip(kl, numbers([values.sum() for values in kl.values()]), strict=True))
    penalised = [
        replace(graded, penalties=tuple(beta * sum(totals[part.index] for part in each) for each in parts_G))
        for graded, parts_G in zip(groups_P, parts_PG, strict=True)
    ]
    return penalised, sum(totals.values()) / max(1, sum(map(len, kl.values())))
