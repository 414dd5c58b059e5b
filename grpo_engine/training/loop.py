"""The order of every run: resume, evaluate, checkpoint, stop, step, finish.

A `Method` makes the steps. The loop is a generator of events: the command line writes them to a file, tests
collect them in a list.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Literal, Self, TypeVar

from grpo_engine.config.guards import Guard, restarted, watch
from grpo_engine.config.job import Hyperparameters, RunConfig, TrainingFreeHyperparameters, hyperparameters_of
from grpo_engine.config.reinforcement import EarlyStopping
from grpo_engine.contract.events import (
    VALIDATION,
    BaseEvent,
    CheckpointSaved,
    Evaluated,
    Finished,
    PhaseChanged,
    StepFinished,
    StepSkipped,
    Stopped,
    Warned,
    quality,
)
from grpo_engine.process.fault_points import fault_point
from grpo_engine.training import checkpoint
from grpo_engine.training.checkpoint import LoopState
from grpo_engine.training.machine_usage import MachineUsage
from grpo_engine.training.method import Artifact, Method
from grpo_engine.training.run_description import model_warnings, started, weights_left_out
from grpo_engine.training.same_start import require_same_files, require_same_weights

M = TypeVar("M", bound=Method)


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a run evaluates, saves and ends early. Intervals are in steps."""

    eval_interval: int
    """Steps between evaluations, besides those before step 1 and after the last step."""
    checkpoint_interval: int
    max_checkpoints: int
    keeps_best: bool = True
    """Evaluate before saving, and keep the best checkpoint too. False: save first, so that a run that ends
    during the evaluation repeats no step."""
    guards: tuple[Guard, ...] = ()
    early_stopping: EarlyStopping | None = None

    @classmethod
    def of(
        cls, settings: Hyperparameters | TrainingFreeHyperparameters, total_steps: int, **more: Any
    ) -> Self:
        """The intervals of a job's hyperparameters, and `more` of the fields above."""
        interval = settings.eval_every(total_steps)
        return cls(interval, settings.checkpoint_interval, settings.max_checkpoints, **more)


@dataclass(eq=False)
class TrainingLoop(Generic[M]):
    """Drives one method from its newest checkpoint to its end."""

    config: RunConfig
    run_dir: Path
    method: M
    schedule: Schedule
    artifact: Artifact | None = None
    """Content of the checkpoints; None: the run is neither saved nor resumed."""
    raise_beta: Callable[[], float] | None = None
    """Function that doubles and returns the KL weight; required if a guard has the action `raise_beta`."""

    def __post_init__(self) -> None:
        self.checkpoints = self.run_dir / "checkpoints"
        self.state = LoopState()
        self.saved_step = 0
        self.last_metrics: dict[str, float] = {}
        self.paused_by_guard = False

    @property
    def last_step(self) -> int:
        """The step after which training ends: the method's last one, or an earlier one set by a guard."""
        return self.method.total_steps if self.state.last_step is None else self.state.last_step

    def run(self, should_stop: Callable[[], bool]) -> Iterator[BaseEvent]:
        """Train to the end, or stop at the next step boundary once `should_stop()` is true."""
        try:
            yield from self._run(should_stop)
        finally:
            self.method.close()

    def _run(self, should_stop: Callable[[], bool]) -> Iterator[BaseEvent]:
        warnings = self._resume()
        yield started(self.method, self.state.step)
        yield from warnings
        yield from weights_left_out(
            self.method, getattr(hyperparameters_of(self.config.method), "lora", None)
        )
        if self.method.policy is not None:
            yield from model_warnings(self.method.policy)
        fault_point("engine.loaded")
        self.method.prepare()
        yield PhaseChanged(phase=self.method.phase, step=self.state.step)
        device = None if self.method.policy is None else self.method.policy.device
        usage = MachineUsage(device, self.method.state.num_tokens)
        while True:
            stopping = self._stop_reason(should_stop)
            if not self.schedule.keeps_best:
                yield from self._save_if_due(stopping)
            if not stopping:
                yield from self._evaluate_if_due()
            yield from self._save_if_due(stopping)
            if stopping:
                yield Stopped(step=self.state.step, reason=stopping)
                return
            if self.state.step == self.last_step:
                break
            yield from self._step(self.state.step + 1, usage)
        fault_point("training.finished")
        yield from self.method.finish(self._finished())

    def _stop_reason(self, should_stop: Callable[[], bool]) -> Literal["asked", "guard"] | None:
        """Why the run stops before its end; None: it continues."""
        if self.state.step == self.last_step:
            return None
        if self.paused_by_guard:
            return "guard"
        return "asked" if should_stop() else None

    def _step(self, step: int, usage: MachineUsage) -> Iterator[BaseEvent]:
        """Make the method's step, then check its metrics with the guards."""
        for event in self.method.step(step):
            if isinstance(event, StepFinished | StepSkipped):
                used = usage.since_last(self.method.state.num_tokens)
                event = event.model_copy(update={"metrics": event.metrics | used})
                self.last_metrics = event.metrics
            yield event
        self.state = replace(self.state, step=step)
        fault_point("step.trained")
        alarms, seen = watch(self.schedule.guards, step, self.last_metrics, self.state.guards)
        self.state = replace(self.state, guards=seen)
        for alarm in alarms:
            message = f"{alarm.message} {self._act(alarm.guard)}".strip()
            yield Warned(code=alarm.code, message=message, step=step)

    def _act(self, guard: Guard) -> str:
        """Carry out the guard's action; returns a sentence about it."""
        if guard.action == "raise_beta" and self.raise_beta is not None:
            return f"beta is now {self.raise_beta():.4g}."
        if guard.action == "warn" or self.state.step == self.last_step:
            return ""
        if guard.action == "pause":
            self.paused_by_guard = True
            self.state = replace(self.state, guards=restarted(self.state.guards))
            return "The job is paused; resume it to continue with the same settings."
        self.state = replace(self.state, last_step=self.state.step)
        return f"Training ends after step {self.state.step}."

    def _evaluate_if_due(self) -> Iterator[BaseEvent]:
        """Evaluate if due; records a new best result and may end the training early."""
        step = self.state.step
        is_due = step == self.last_step or step % self.schedule.eval_interval == 0
        if step <= self.state.evaluated_step or not is_due:
            return
        if self.method.has_held_out_rows:
            yield PhaseChanged(phase="evaluating", step=step)
            yield from self._evaluate()
            yield PhaseChanged(phase=self.method.phase, step=step)
        self.state = replace(self.state, evaluated_step=step)

    def _evaluate(self) -> Iterator[BaseEvent]:
        warnings: list[Warned] = []
        for event in self.method.evaluate(self.state.step):
            if isinstance(event, Evaluated):
                if event.name == VALIDATION and self.schedule.keeps_best:
                    warnings += self._compare_with_best(quality(event.metrics))
                event = event.model_copy(update={"is_final": self.state.step == self.last_step})
            yield event
        yield from warnings

    def _compare_with_best(self, found: float) -> list[Warned]:
        """Record the best evaluation; end the training after too many without improvement.

        An evaluation without a single scored row is ignored.
        """
        if not math.isfinite(found):
            return []
        step, best, settings = self.state.step, self.state.best_quality, self.schedule.early_stopping
        improved = best is None or found > best + (settings.min_improvement if settings else 0.0)
        count = 0 if improved else self.state.without_improvement + 1
        self.state = replace(self.state, without_improvement=count)
        if best is None or found > best:
            self.state = replace(self.state, best_step=step, best_quality=found)
        if settings is None or count < settings.patience or step >= self.last_step:
            return []
        self.state = replace(self.state, last_step=step)
        message = early_stopping_message(settings, self.state, found)
        return [Warned(code="early_stopping", message=message, step=step)]

    def _resume(self) -> list[Warned]:
        """Load the newest valid checkpoint; returns warnings of skipped ones and of what has changed since.

        Raises RanksDisagreeError unless all ranks start from the same state.
        """
        found, skipped, changed = None, list[str](), list[Warned]()
        if self.artifact is not None:
            found, skipped = checkpoint.newest_valid(self.checkpoints, self.config)
        require_same_files(self.config, self.method.policy, found)
        if self.artifact is not None and found is not None:
            self.state, method_state = checkpoint.load(found, self.artifact)
            changed = self.method.load_state(method_state)
            self.saved_step = self.state.step
        require_same_weights(self.method.policy)
        return [*(Warned(code="checkpoint_skipped", message=sentence) for sentence in skipped), *changed]

    def _save_if_due(self, stopping: str | None) -> Iterator[CheckpointSaved]:
        step = self.state.step
        if self.artifact is None or step <= self.saved_step:
            return
        is_wanted = stopping or step in (self.last_step, self.state.best_step)
        if not is_wanted and step % self.schedule.checkpoint_interval:
            return
        path = checkpoint.save(
            self.checkpoints, self.config, self.artifact, self.state, self.method.state_dict()
        )
        self.saved_step = step
        # The worker may still be reading the second newest checkpoint.
        keep, best = max(2, self.schedule.max_checkpoints), self.state.best_step
        checkpoint.retain(self.checkpoints, keep, best, is_sharded=self.artifact.is_sharded)
        yield CheckpointSaved(
            step=step, path=f"{self.checkpoints.name}/{path.name}", metrics=self.last_metrics
        )

    def _finished(self) -> Finished:
        best = self.state.best_step
        best_path = None if best is None else self._artifact_path(best)
        has_best = best_path is not None and (self.checkpoints.parent / best_path).is_dir()
        return Finished(
            step=self.state.step,
            path=self._artifact_path(self.state.step),
            num_tokens=self.method.state.num_tokens,
            best_step=best,
            best_path=best_path if has_best else None,
        )

    def _artifact_path(self, step: int) -> str:
        """Folder of a checkpoint's result, relative to the run directory."""
        name = "" if self.artifact is None else self.artifact.folder_name
        return f"{self.checkpoints.name}/{checkpoint.step_name(step)}/{name}"


def early_stopping_message(settings: EarlyStopping, state: LoopState, found: float) -> str:
    """What early stopping found, why it matters and which field to change."""
    patience = settings.patience
    evaluations = f"{patience} evaluations in a row" if patience > 1 else "one evaluation"
    return (
        f"The held-out reward did not rise by more than {settings.min_improvement:.4g} in "
        f"{evaluations}: it is {found:.4g}, the best was {state.best_quality:.4g} "
        f"after step {state.best_step}. More training would only fit the training rows, so it ends after "
        f"step {state.step}. A larger early_stopping.patience waits longer."
    )
