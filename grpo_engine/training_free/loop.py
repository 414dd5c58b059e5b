"""Training-Free GRPO: the only file that knows the order of a step and of a run.

arXiv 2510.08191: sample a group per prompt with the library in the prompt, score it, take the group's own
mean and spread as the baseline, let a model say in words what won, change the library. No weight moves, so
what `training/loop.py` does about weights, optimiser and memory has no place here; events are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from grpo_engine.config.job import RunConfig
from grpo_engine.config.training_free import TrainingFreeHyperparameters
from grpo_engine.contract.events import (
    VALIDATION,
    BaseEvent,
    CheckpointSaved,
    Evaluated,
    Finished,
    PhaseChanged,
    Started,
    StepFinished,
    StepSkipped,
    Stopped,
    Warned,
)
from grpo_engine.objective.metrics import PhaseTimer, finite
from grpo_engine.objective.types import GradedGroup, Prompt, ScoredGroup
from grpo_engine.rollout.dataset import item_of
from grpo_engine.rollout.evaluation import rewards_by_row, summary, verdict_on
from grpo_engine.rollout.prompt_source import PromptSource
from grpo_engine.rollout.scoring import refuse_broken_grader, rollouts
from grpo_engine.training import checkpoint
from grpo_engine.training.loop import library_versions
from grpo_engine.training_free import library_files
from grpo_engine.training_free.library import Library
from grpo_engine.training_free.library_files import State
from grpo_engine.training_free.parts import Parts
from grpo_engine.training_free.prompts import Row
from grpo_engine.training_free.reflection import Reflection, Tally
from grpo_engine.training_free.rollouts import Attempts, attempt_metrics, compare, length_metrics
from grpo_engine.training_free.speakers import Asking, failure_of, tokens_of


class TrainingFreeLoop:
    def __init__(
        self,
        config: RunConfig,
        settings: TrainingFreeHyperparameters,
        run_dir: Path,
        parts: Parts,
        rows: Sequence[Row],
        validation: Sequence[Row] = (),
    ) -> None:
        self.config = config
        self.settings = settings
        self.checkpoints = run_dir / "checkpoints"
        self.parts = parts
        self.attempts = Attempts(parts.attempting, settings)
        self.rows = rows
        self.validation = validation[: settings.eval_rows(len(validation))]
        self.source = PromptSource(_blank(rows), settings.rows_per_step(len(rows)), config.seed)
        self.total_steps = settings.total_steps(len(rows))
        self.state = State()
        self.saved = State()
        self.last_metrics: dict[str, float] = {}
        self.warned: set[str] = set()

    def run(self, should_stop: Callable[[], bool]) -> Iterator[BaseEvent]:
        """Learn to the end, or to the next step boundary once `should_stop()` says so."""
        try:
            yield from self._run(should_stop)
        finally:
            self.parts.grading.close()
            self.parts.eval_grading.close()

    def _run(self, should_stop: Callable[[], bool]) -> Iterator[BaseEvent]:
        skipped = self._resume()
        yield self._started()
        yield from skipped
        yield PhaseChanged(phase="training", step=self.state.step)
        while True:
            stopping = should_stop() and self.state.step < self.total_steps
            if self._checkpoint_is_due() or (stopping and self.state.step and self.state != self.saved):
                yield self._save()
            if stopping:
                yield Stopped(step=self.state.step)
                return
            yield from self._evaluated()
            if self.state.step == self.total_steps:
                break
            yield from self.step(self.state.step + 1)
        yield from self._finished()

    def step(self, step: int) -> Iterator[BaseEvent]:
        """Attempt with the library, score and compare, reflect, change the library."""
        timer = PhaseTimer()
        prompts = self.source.batch(step)
        rows = [self.rows[prompt.row] for prompt in prompts]
        asked, num_left_out = self._prompted(rows)
        yield from self._told(num_left_out)
        asking = self._asking(step, self.settings.temperature)
        graded = self.attempts.graded(
            prompts, asked, self.settings.group_size, asking, self.parts.grading, timer
        )
        self._refuse_broken(graded)
        scored = compare(graded)
        yield from rollouts(step, scored)
        reflection = Reflection(self.parts.reflecting, self.settings, self.state.library, step)
        with timer.measure("reflect"):
            operations = reflection.operations(scored, rows)
        library, changes = self.state.library.changed(
            operations,
            step,
            limit=self.settings.max_experiences,
            max_chars=self.settings.max_experience_chars,
        )
        self._advance(step, library, scored)
        metrics = {
            "experiences/count": float(len(library.experiences)),
            "experiences/left_out": float(num_left_out),
            **changes.metrics(),
            **reflection.tally.metrics(),
        }
        yield from self._notes(reflection.tally)
        yield self._ended(step, scored, metrics, timer)

    def evaluate(self, step: int) -> Iterator[BaseEvent]:
        """One attempt at each held-out row, scored."""
        yield PhaseChanged(phase="evaluating", step=step)
        rows, num_left_out = self._prompted(self.validation)
        yield from self._told(num_left_out)
        asking = self._asking(step, self.settings.eval_temperature)
        prompts = _blank(self.validation)
        graded = self.attempts.graded(prompts, rows, 1, asking, self.parts.eval_grading, PhaseTimer())
        scored = compare(graded)
        yield from rollouts(step, scored, "validation")
        rewards = rewards_by_row(scored)
        if step == 0:
            self.state = replace(self.state, baseline=rewards)
        count = float(len(self.state.library.experiences))
        yield Evaluated(
            step=step,
            metrics=finite({**summary(scored), **length_metrics(scored), "experiences/count": count}),
            verdict=verdict_on(VALIDATION, self.state.baseline or None, rewards) if step else None,
            is_final=step == self.total_steps,
        )
        yield PhaseChanged(phase="training", step=step)

    def _evaluated(self) -> Iterator[BaseEvent]:
        """The evaluation where it is due; what it cost is in the state."""
        step = self.state.step
        is_due = step > self.state.evaluated_step and self.settings.evaluates_after(step, self.total_steps)
        if is_due and self.validation:
            yield from self.evaluate(step)
            self.state = replace(self._paid(), evaluated_step=step)

    def _prompted(self, rows: Sequence[Row]) -> tuple[list[Row], int]:
        """The rows with the library, and the most lessons that had to stay out of one."""
        found = [self.attempts.prompted(row, self.state.library) for row in rows]
        return [row for row, _ in found], max(left_out for _, left_out in found)

    def _asking(self, step: int, temperature: float) -> Asking:
        return Asking(
            max_tokens=self.settings.max_completion_tokens,
            temperature=temperature,
            step=step,
            version=self.state.library.version,
        )

    def _refuse_broken(self, graded: Sequence[GradedGroup]) -> None:
        """Raises GraderError where the grader fails on too many of the attempts that were made."""
        made = []
        for group in graded:
            pairs = zip(group.group.completions, group.scores, strict=True)
            scores = tuple(score for completion, score in pairs if failure_of(completion) is None)
            made.append(GradedGroup(group.group, scores))
        refuse_broken_grader(made, self.settings.max_grader_error_rate)

    def _advance(self, step: int, library: Library, scored: Sequence[ScoredGroup]) -> None:
        tokens = sum(tokens_of(each) for group in scored for each in group.group.completions)
        num_tokens = self.state.num_tokens + tokens
        self.state = replace(self._paid(), step=step, library=library, num_tokens=num_tokens)

    def _paid(self) -> State:
        """The state with what was spent until now."""
        budget = self.parts.budget
        return replace(self.state, num_calls=budget.num_calls, cost_usd=budget.cost_usd)

    def _ended(
        self, step: int, scored: Sequence[ScoredGroup], metrics: dict[str, float], timer: PhaseTimer
    ) -> StepFinished | StepSkipped:
        """The step's event; one whose groups taught nothing is skipped and says so."""
        own = {
            "num_tokens": float(self.state.num_tokens),
            "policy_version": float(self.state.library.version),
            "endpoint/calls": float(self.state.num_calls),
            "endpoint/cost_usd": self.state.cost_usd,
        }
        self.last_metrics = finite({**attempt_metrics(scored), **metrics, **own, **timer.metrics()})
        if any(group.has_signal for group in scored):
            return StepFinished(step=step, metrics=self.last_metrics)
        return StepSkipped(step=step, reason="no_signal", metrics=self.last_metrics)

    def _told(self, num_left_out: int) -> Iterator[Warned]:
        if num_left_out and "experiences_left_out" not in self.warned:
            self.warned.add("experiences_left_out")
            message = (
                f"{num_left_out} lessons do not fit the model's context beside the longest prompt and stay "
                "out of it: lower max_experiences, max_experience_chars or max_completion_tokens."
            )
            yield Warned(code="experiences_left_out", message=message)

    def _notes(self, tally: Tally) -> Iterator[Warned]:
        if tally.errors and "reflection_errors" not in self.warned:
            self.warned.add("reflection_errors")
            message = f"Some answers of the reflecting model cannot be used: {'; '.join(tally.notes)}."
            yield Warned(code="reflection_errors", message=message)

    def _checkpoint_is_due(self) -> bool:
        step = self.state.step
        if step <= self.saved.step:
            return False
        return step == self.total_steps or step % self.settings.checkpoint_interval == 0

    def _resume(self) -> list[Warned]:
        found, skipped = checkpoint.newest_valid(self.checkpoints, self.config)
        if found is not None:
            self.state = self.saved = library_files.load(found)
            self.parts.budget.restore(self.state.num_calls, self.state.cost_usd)
        return [Warned(code="checkpoint_skipped", message=sentence) for sentence in skipped]

    def _save(self) -> CheckpointSaved:
        """Before the evaluation of the step, so that an end in the midst of it costs no attempt."""
        path = library_files.save(
            self.checkpoints, self.config, self.state, self.settings.template, self.rows[0]
        )
        self.saved = self.state
        # The worker may still be reading the one before the newest.
        checkpoint.retain(self.checkpoints, max(2, self.settings.max_checkpoints))
        relative = f"{self.checkpoints.name}/{path.name}"
        return CheckpointSaved(step=self.state.step, path=relative, metrics=self.last_metrics)

    def _finished(self) -> Iterator[BaseEvent]:
        if not self.state.library.experiences:
            message = (
                "No lesson was learnt, so the prompt is as it was: all attempts of each row scored alike."
            )
            yield Warned(code="no_experiences", message=message)
        path = f"{self.checkpoints.name}/step-{self.state.step:08d}/{library_files.FOLDER}"
        yield Finished(step=self.state.step, path=path, num_tokens=self.state.num_tokens)

    def _started(self) -> Started:
        machine = self.parts.machine
        return Started(
            total_steps=self.total_steps,
            resumed_from_step=self.state.step,
            device=machine.device,
            dtype=machine.dtype,
            sampler=self.parts.attempting.label,
            num_parameters=machine.num_parameters,
            num_trainable_parameters=0,
            num_rows=len(self.rows),
            versions=library_versions(),
        )


def _blank(rows: Sequence[Row]) -> list[Prompt]:
    """Rows by their number: the words are put together anew for each step."""
    return [Prompt(number, "", (), item_of(row)) for number, row in enumerate(rows)]
