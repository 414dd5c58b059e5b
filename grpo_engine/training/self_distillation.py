"""SDPO: the policy with feedback in its prompt teaches the policy without feedback.

Reinforcement Learning via Self-Distillation (arXiv 2601.20802): with x the question, y a failed attempt and
f the feedback on it, L = mean over the attempts' tokens of KL(π(·|x, y_<t) ‖ stop_grad π(·|x, f, y_<t)).
The teacher uses the current weights, so nothing is kept between steps.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from grpo_engine.config.reinforcement import ReinforcementHyperparameters, SelfDistillation
from grpo_engine.models.distillation import kl_to_teacher
from grpo_engine.models.policy import Policy
from grpo_engine.objective.metrics import LARGEST_DIFFERENCE, MEAN_DIFFERENCE, numbers
from grpo_engine.objective.packing import TrainingGroup, TrainingSequence, pack, trained_tokens
from grpo_engine.objective.types import PackedBatch, Prompt, ScoredGroup
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.training.gradients import TokenValues

RewritePrompt = Callable[[Prompt, Callable[[str], str]], tuple[int, ...]]
"""Returns the token ids of a prompt with a rewritten last user turn (`RowReader.rewritten`)."""


@dataclass(frozen=True, slots=True)
class DistillationBatch:
    """A step's failed attempts, once after the student's prompt and once after the teacher's."""

    student: tuple[TrainingGroup, ...]
    """The attempts after their original prompts."""
    teacher: Mapping[int, TrainingGroup]
    """Index of an attempt's sequence → the attempt's tokens after the prompt with feedback."""
    too_long: int
    """Attempts left out because they exceed the model's context together with the feedback."""

    @property
    def num_tokens(self) -> int:
        """Tokens that are distilled."""
        return sum(group.num_trained for group in self.student)


def distillation_batch(
    scored_P: Sequence[ScoredGroup],
    settings: ReinforcementHyperparameters,
    rewrite: RewritePrompt,
    max_length: int | None = None,
) -> DistillationBatch:
    """The step's failed attempts with feedback. Requires `settings.self_distillation`."""
    options = settings.self_distillation
    assert options is not None
    student: list[TrainingGroup] = []
    teacher: dict[int, TrainingGroup] = {}
    index = too_long = 0
    for scored in scored_P:
        sequences = []
        for place, feedback in failed_attempts(scored, options):
            completion = scored.group.completions[place]
            if not trained_tokens(completion, settings.mask_truncated_completions):
                continue
            with_feedback = partial(_with_feedback, options.template, feedback)
            teacher_prompt = rewrite(scored.group.prompt, with_feedback)
            if max_length is not None and len(teacher_prompt) + len(completion.token_ids) > max_length:
                too_long += 1
                continue
            sequences.append(TrainingSequence.unweighted(completion, index))
            teacher[index] = TrainingGroup(teacher_prompt, (sequences[-1],))
            index += 1
        if sequences:
            student.append(TrainingGroup(scored.group.prompt.token_ids, tuple(sequences)))
    return DistillationBatch(tuple(student), teacher, too_long)


def failed_attempts(scored: ScoredGroup, options: SelfDistillation) -> list[tuple[int, str]]:
    """(position in the group, feedback) of each failed attempt that has feedback.

    An unscorable attempt has neither failed nor succeeded.
    """
    example = _best_answer(scored, options) if options.feedback != "grader" else ""
    found = []
    for place, score in enumerate(scored.scores):
        if score.reward is None or score.reward >= options.success_reward:
            continue
        message = score.feedback if options.feedback != "sibling" else ""
        if feedback := feedback_text(message, example):
            found.append((place, feedback))
    return found


def feedback_text(message: str, example: str) -> str:
    """Text of the feedback; empty if there is neither a message nor an example."""
    parts = []
    if message:
        parts.append(f"An earlier answer was wrong. Feedback on it:\n{message}")
    if example:
        parts.append(f"A correct answer:\n{example}")
    return "\n\n".join(parts)


def _best_answer(scored: ScoredGroup, options: SelfDistillation) -> str:
    """Text of the group's best success (of equal ones, the first); empty if there is none."""
    rewards = [float("-inf") if score.reward is None else score.reward for score in scored.scores]
    best = max(range(len(rewards)), key=rewards.__getitem__)
    return scored.group.completions[best].text if rewards[best] >= options.success_reward else ""


def _with_feedback(template: str, feedback: str, prompt: str) -> str:
    """A user's turn with the feedback on the attempt; other braces in the template stay unchanged."""
    values = {"prompt": prompt, "feedback": feedback}
    return re.sub(r"\{(prompt|feedback)\}", lambda match: values[match[1]], template)


class DistillationTerm:
    """The distillation loss of a step, which is a mean over its distilled tokens, as a term of its loss."""

    def __init__(
        self, policy: Policy, settings: ReinforcementHyperparameters, batch: DistillationBatch
    ) -> None:
        assert settings.self_distillation is not None
        self.policy = policy
        self.options: SelfDistillation = settings.self_distillation
        self.temperature = settings.temperature
        self.batch = batch
        self.num_tokens = batch.num_tokens
        self.ranks = Ranks.current()
        self.difference: dict[str, float] = {}
        """Metrics of the difference between sampler and trainer, before the first update of the step."""

    def __call__(self, token_budget: int) -> dict[str, float]:
        """Add the gradients of this rank's micro-batches; returns metrics over all ranks."""
        values: list[Tensor] = []
        for batch in pack(self.ranks.share(self.batch.student), token_budget, self.policy.device):
            kl_N, logprobs_N = self._divergence(batch, self._teacher_states(batch, token_budget))
            loss = self.options.weight * kl_N.sum() / self.num_tokens
            loss.backward()  # type: ignore[no-untyped-call]
            difference_N = (logprobs_N - batch.sampled_logprobs_N).abs()
            values += kl_N.detach().sum(), difference_N.sum(), difference_N.max()
        found = self.ranks.joined(numbers(values))
        kl = sum(found[::3]) / self.num_tokens
        self.difference = self.difference or {
            MEAN_DIFFERENCE: sum(found[1::3]) / self.num_tokens,
            LARGEST_DIFFERENCE: max(found[2::3]),
        }
        return {
            **self.difference,
            "loss": self.options.weight * kl,
            "self_distillation/kl": kl,
            "self_distillation/attempts": float(len(self.batch.teacher)),
            "self_distillation/too_long": float(self.batch.too_long),
        }

    def _teacher_states(self, batch: PackedBatch, token_budget: int) -> Tensor:
        """[N, H] hidden states that predict the batch's tokens under the teacher, without gradient.

        Each attempt has its own prompt here, so the teacher's micro-batches differ from the student's.
        """
        groups, token_values = [self.batch.teacher[index] for index in batch.indices], TokenValues()
        with torch.no_grad():
            for teacher_batch in pack(groups, token_budget, self.policy.device):
                token_values.store(
                    "teacher", teacher_batch, self.policy.output_states(self.policy.model, teacher_batch)[0]
                )
        states_N = token_values.find("teacher", batch)
        assert states_N is not None
        return states_N

    def _divergence(self, batch: PackedBatch, teacher_N: Tensor) -> tuple[Tensor, Tensor]:
        """[N] KL of each token, with the student's gradient, and the student's log-probability [N]."""
        with self.policy.dropout():
            student_N, head = self.policy.output_states(self.policy.model, batch)
        with torch.autocast(self.policy.device.type, torch.bfloat16, enabled=self.policy.autocast):
            return kl_to_teacher(
                student_N,
                teacher_N,
                batch.targets_N,
                head,
                temperature=self.temperature,
                top_k=self.options.top_k,
            )


def distillation_terms(
    policy: Policy,
    settings: ReinforcementHyperparameters,
    scored_P: Sequence[ScoredGroup],
    rewrite: RewritePrompt,
) -> list[DistillationTerm]:
    """The step's term, if the job distils and failed attempts have feedback; otherwise nothing."""
    if settings.self_distillation is None:
        return []
    batch = distillation_batch(
        scored_P, settings, lambda *given: policy.known(rewrite(*given)), policy.max_length
    )
    return [DistillationTerm(policy, settings, batch)] if batch.teacher else []
