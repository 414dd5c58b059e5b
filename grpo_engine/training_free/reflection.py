"""From a batch's groups to operations on the library: summarise, compare, consolidate.

This is the semantic advantage of Training-Free GRPO (arXiv 2510.08191 §2): numeric advantages show which
attempts won, and a model describes why.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from grpo_engine.config.training_free import TrainingFreeHyperparameters
from grpo_engine.objective.types import Completion, ScoredGroup
from grpo_engine.rollout.sampler.base import Sampling
from grpo_engine.training_free.library import Library, Operation
from grpo_engine.training_free.model_client import ModelClient, Reply
from grpo_engine.training_free.prompts import (
    MAX_OPERATIONS,
    AttemptView,
    Messages,
    Row,
    compare_messages,
    consolidate_messages,
    excerpt,
    retry_messages,
    summarise_messages,
    task_text,
)
from grpo_engine.training_free.proposals import read_operations, without_thoughts

ROUND = 1_000_000
"""Distance between the prompt numbers of two rounds of questions, so that they draw different tokens."""
MAX_SUMMARY_CHARS = 2000
MAX_FEEDBACK_CHARS = 1000


@dataclass
class ReflectionStats:
    """Cost and failures of a step's reflection."""

    calls: int = 0
    tokens: int = 0
    """Prompt and completion tokens, as far as the endpoint counts them."""
    errors: int = 0
    """Answers that failed or could not be read."""
    dropped: int = 0
    """Proposals that were dropped."""
    notes: list[str] = field(default_factory=list)
    """Reasons of the first three errors."""

    def count(self, completion: Completion) -> None:
        self.calls += 1
        self.tokens += completion.num_tokens
        if isinstance(completion, Reply):
            self.tokens += completion.num_prompt_tokens
        if completion.failure is not None:
            self.add_error(completion.failure)

    def metrics(self) -> dict[str, float]:
        names = ("calls", "tokens", "errors", "dropped")
        return {f"reflection/{name}": float(getattr(self, name)) for name in names}

    def add_error(self, reason: str) -> None:
        self.errors += 1
        if len(self.notes) < 3 and reason not in self.notes:
            self.notes.append(reason)


@dataclass
class Reflection:
    client: ModelClient
    settings: TrainingFreeHyperparameters
    library: Library
    seed: int
    step: int
    stats: ReflectionStats = field(default_factory=ReflectionStats)
    round: int = 0

    def operations(self, groups: Sequence[ScoredGroup], rows: Sequence[Row]) -> list[Operation]:
        """Operations on the library, from the groups with signal. `rows`: the rows without the library."""
        pairs = [(group, row) for group, row in zip(groups, rows, strict=True) if group.has_signal]
        if not pairs:
            return []
        tasks = [excerpt(task_text(row), self.settings.max_attempt_chars) for _, row in pairs]
        views = self._summarised([group for group, _ in pairs], tasks)
        experiences, max_chars = self.library.experiences, self.settings.max_experience_chars
        questions = [
            compare_messages(task, each, experiences, max_chars)
            for task, each in zip(tasks, views, strict=True)
        ]
        listed = self._listed(questions)
        self.stats.dropped = sum(found is None for found in listed)
        proposals = [found[:MAX_OPERATIONS] for found in listed if found]
        return self._consolidated(proposals) if proposals else []

    def _summarised(self, groups: Sequence[ScoredGroup], tasks: Sequence[str]) -> list[list[AttemptView]]:
        """A summary of every scored attempt by the reflecting model; the attempt's text if that fails."""
        views = [scored_attempts(group, self.settings.max_attempt_chars) for group in groups]
        questions = [
            summarise_messages(task, each.summary, each.reward, each.feedback)
            for task, own in zip(tasks, views, strict=True)
            for each in own
        ]
        summaries = (without_thoughts(text or "") for text in self._texts(questions))
        return [
            [
                replace(each, summary=excerpt(next(summaries) or each.summary, MAX_SUMMARY_CHARS))
                for each in own
            ]
            for own in views
        ]

    def _consolidated(self, proposals: Sequence[Sequence[Operation]]) -> list[Operation]:
        """The proposals merged by the model; concatenated if its answer cannot be read."""
        settings = self.settings
        question = consolidate_messages(
            proposals, self.library.experiences, settings.max_experiences, settings.max_experience_chars
        )
        merged = self._listed([question])[0]
        return [each for proposal in proposals for each in proposal] if merged is None else merged

    def _listed(self, questions: Sequence[Messages]) -> list[list[Operation] | None]:
        """Operations of each answer; an unreadable one is requested once more, then dropped (None)."""
        found, faults = self._read(questions)
        repeated = sorted(faults)
        second, _ = self._read([retry_messages(questions[place], *faults[place]) for place in repeated])
        for place, operations in zip(repeated, second, strict=True):
            found[place] = operations
        return found

    def _read(
        self, questions: Sequence[Messages]
    ) -> tuple[list[list[Operation] | None], dict[int, tuple[str, str]]]:
        """Operations of each answer, and (answer, fault) by position of those that cannot be read."""
        found: list[list[Operation] | None] = []
        faults: dict[int, tuple[str, str]] = {}
        for place, text in enumerate(self._texts(questions)):
            operations = None
            if text is not None:
                try:
                    operations = read_operations(text)
                except ValueError as error:
                    self.stats.add_error(str(error))
                    faults[place] = text, str(error)
            found.append(operations)
        return found, faults

    def _texts(self, questions: Sequence[Messages]) -> list[str | None]:
        """One answer to each question, None if it failed."""
        if not questions:
            return []
        self.round += 1
        sampling = Sampling(
            max_tokens=self.settings.reflection_max_tokens,
            temperature=self.settings.reflection_temperature,
            seed=self.seed,
            step=self.step,
            first_prompt=self.round * ROUND,
        )
        rows: list[Row] = [{"messages": messages} for messages in questions]
        texts: list[str | None] = []
        for (completion,) in self.client.answer(rows, 1, sampling):
            self.stats.count(completion)
            texts.append(completion.text if completion.failure is None else None)
        return texts


def scored_attempts(group: ScoredGroup, max_chars: int) -> list[AttemptView]:
    """The group's attempts that have a reward, with at most `max_chars` of their text as summary."""
    attempts = zip(group.group.completions, group.scores, group.advantages, strict=True)
    return [
        AttemptView(
            excerpt(completion.text, max_chars),
            score.reward,
            advantage,
            excerpt(score.feedback, MAX_FEEDBACK_CHARS),
        )
        for completion, score, advantage in attempts
        if score.reward is not None
    ]
