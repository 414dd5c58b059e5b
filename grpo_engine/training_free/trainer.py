"""Training-Free GRPO: the order of a step.

arXiv 2510.08191: sample a group per prompt with the experience library in the prompt, score it, compare each
group's attempts, let a model describe what made the difference, change the library. Weights never change.
`training/loop.py` drives the steps; the library is the run's artifact.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from grpo_engine.config.job import RunConfig
from grpo_engine.config.training_free import TrainingFreeHyperparameters
from grpo_engine.contract.events import VALIDATION, BaseEvent, Finished, StepFinished, StepSkipped, Warned
from grpo_engine.graders.pool.pool import Grading
from grpo_engine.models.policy import Policy
from grpo_engine.objective.metrics import PhaseTimer, completion_metrics, finite, reward_metrics
from grpo_engine.objective.types import Prompt, ScoredGroup
from grpo_engine.rollout.dataset import item_of
from grpo_engine.rollout.evaluation import Rewards, evaluation_events
from grpo_engine.rollout.prompt_source import PromptSource
from grpo_engine.rollout.recording import rollouts
from grpo_engine.rollout.sampler.base import Sampling
from grpo_engine.rollout.scoring import refuse_broken_grader
from grpo_engine.training.method import Method, MethodState
from grpo_engine.training_free import library_files
from grpo_engine.training_free.attempts import Attempts, unanswered, with_advantages
from grpo_engine.training_free.endpoint_client import EndpointBudget
from grpo_engine.training_free.library import Library
from grpo_engine.training_free.model_client import ModelClient
from grpo_engine.training_free.prompts import Row
from grpo_engine.training_free.reflection import Reflection


@dataclass(frozen=True, slots=True)
class Resources:
    """Models, graders and budget of a run."""

    attempting: ModelClient
    reflecting: ModelClient
    grading: Grading
    eval_grading: Grading
    budget: EndpointBudget
    policy: Policy | None
    """The job's own model; None: endpoints do all the work."""


@dataclass(frozen=True, slots=True)
class ExperienceState(MethodState):
    """The trainer's part of a run's state; `policy_version` is the library's version."""

    step: int = 0
    library: Library = field(default_factory=Library)
    baseline: Mapping[str, Rewards] = field(default_factory=dict)
    """Evaluated set → row → reward before step 1."""


class ExperienceTrainer(Method):
    """Learns an experience library; the library is also the run's `Artifact`."""

    trains_weights = False

    def __init__(
        self,
        config: RunConfig,
        settings: TrainingFreeHyperparameters,
        resources: Resources,
        rows: Mapping[int, Row],
        validation: Mapping[int, Row],
    ) -> None:
        """`rows`, `validation`: number in their file → row."""
        self.config = config
        self.settings = settings
        self.resources = resources
        self.attempts = Attempts(resources.attempting, settings)
        self.rows = rows
        self.validation = dict(islice(validation.items(), settings.eval_rows(len(validation))))
        self.has_held_out_rows = bool(self.validation)
        self.source = PromptSource(_row_prompts(rows), settings.rows_per_step(len(rows)), config.seed)
        self.total_steps = settings.total_steps(len(rows))
        self.num_rows = len(rows)
        self.policy = resources.policy
        self.sampler_name = resources.attempting.label
        self.state: ExperienceState = ExperienceState()
        self.warned: set[str] = set()

    def step(self, step: int) -> Iterator[BaseEvent]:
        """Make attempts with the library, score and compare them, reflect, change the library."""
        timer = PhaseTimer()
        prompts = self.source.batch(step)
        rows = [self.rows[prompt.row] for prompt in prompts]
        prompted, num_left_out = yield from self._prompted(rows)
        graded = self.attempts.graded(
            prompts,
            prompted,
            self.settings.group_size,
            self._sampling(step, self.settings.temperature),
            self.state.policy_version,
            self.resources.grading,
            timer,
        )
        refuse_broken_grader(graded, self.settings.max_grader_error_rate)
        scored = with_advantages(graded)
        yield from rollouts(step, scored)
        reflection = Reflection(
            self.resources.reflecting, self.settings, self.state.library, self.config.seed, step
        )
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
            **reflection.stats.metrics(),
        }
        if reflection.stats.errors:
            reasons = "; ".join(reflection.stats.notes)
            message = f"Some answers of the reflecting model cannot be used: {reasons}."
            yield from self._warn_once("reflection_errors", message)
        yield self._step_event(step, scored, metrics, timer)

    def _advance(self, step: int, library: Library, scored: Sequence[ScoredGroup]) -> None:
        """Set the state after the step."""
        tokens = sum(each.num_tokens for group in scored for each in group.group.completions)
        self.state = replace(
            self.state,
            policy_version=library.version,
            num_tokens=self.state.num_tokens + tokens,
            step=step,
            library=library,
        )

    def evaluate(self, step: int) -> Iterator[BaseEvent]:
        """Make one attempt at each held-out row and score it."""
        prompted, _ = yield from self._prompted([*self.validation.values()])
        graded = self.attempts.graded(
            _row_prompts(self.validation),
            prompted,
            1,
            self._sampling(step, self.settings.eval_temperature),
            self.state.policy_version,
            self.resources.eval_grading,
            PhaseTimer(),
        )
        scored = with_advantages(graded)
        metrics = {**unanswered(scored), "experiences/count": float(len(self.state.library.experiences))}
        baseline = yield from evaluation_events(
            step, VALIDATION, scored, self.state.baseline, metrics=metrics
        )
        self.state = replace(self.state, baseline=baseline)

    def _prompted(self, rows: Sequence[Row]) -> Generator[Warned, None, tuple[list[Row], int]]:
        """The rows with the library, and the largest number of lessons left out of one."""
        found = [self.attempts.prompted(row, self.state.library) for row in rows]
        num_left_out = max(left_out for _, left_out in found)
        if num_left_out:
            yield from self._warn_once(
                "experiences_left_out",
                f"{num_left_out} lessons do not fit the model's context beside the longest prompt and are "
                "left out: lower max_experiences, max_experience_chars or max_completion_tokens.",
            )
        return [row for row, _ in found], num_left_out

    def _sampling(self, step: int, temperature: float) -> Sampling:
        return Sampling(self.settings.max_completion_tokens, temperature, self.config.seed, step)

    def _step_event(
        self, step: int, scored: Sequence[ScoredGroup], metrics: dict[str, float], timer: PhaseTimer
    ) -> StepFinished | StepSkipped:
        """The step's metrics; StepSkipped if no group has signal."""
        own = {
            **self.state.metrics(),
            "endpoint/calls": float(self.resources.budget.account.calls),
            "endpoint/cost_usd": self.resources.budget.account.usd,
        }
        completions = [each for group in scored for each in group.group.completions]
        shared = {**reward_metrics(scored), **completion_metrics(completions)}
        everything = finite({**shared, **unanswered(scored), **metrics, **own, **timer.metrics()})
        if any(group.has_signal for group in scored):
            return StepFinished(step=step, metrics=everything)
        return StepSkipped(step=step, reason="no_signal", metrics=everything)

    def _warn_once(self, code: str, message: str) -> Iterator[Warned]:
        if code not in self.warned:
            self.warned.add(code)
            yield Warned(code=code, message=message)

    def finish(self, finished: Finished) -> Iterator[BaseEvent]:
        if not self.state.library.experiences:
            message = (
                "No lesson was learned, so the prompt is unchanged: all attempts at each row scored alike, "
                "or the reflecting model wrote no lesson that can be used."
            )
            yield Warned(code="no_experiences", message=message)
        yield finished

    def state_dict(self) -> dict[str, Any]:
        account = self.resources.budget.account
        spent = {"num_calls": account.calls, "cost_usd": account.usd}
        return {**super().state_dict(), "library": self.state.library.model_dump(), "spent": spent}

    def load_state(self, state: Mapping[str, Any]) -> list[Warned]:
        library = Library.model_validate(state["library"])
        own = {name: value for name, value in state.items() if name != "spent"}
        self.resources.budget.restore(**state["spent"])
        return super().load_state({**own, "library": library})

    @property
    def folder_name(self) -> str:
        return library_files.FOLDER

    def facts(self) -> dict[str, Any]:
        return {}

    is_sharded = False

    def write(self, folder: Path | None) -> None:
        assert folder is not None, "a training-free job is one process"
        lessons = self.state.library.experiences
        facts = {"job_id": self.config.job_id, "step": self.state.step}
        example = next(iter(self.rows.values()))
        library_files.write(folder / self.folder_name, lessons, self.settings.template, example, facts)

    def load(self, folder: Path) -> None:
        """Do nothing, because the library is part of the state."""

    def close(self) -> None:
        self.resources.grading.close()
        self.resources.eval_grading.close()


def _row_prompts(rows: Mapping[int, Row]) -> list[Prompt]:
    """Prompts that only name their row, because each step composes the text with the current library."""
    return [Prompt(number, "", (), item_of(row)) for number, row in rows.items()]
