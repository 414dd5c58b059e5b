"""What every training run has around its steps: resume, evaluate, checkpoint, stop, finish.

A method (`trainer.py`, `supervised.py`) gives the steps. The loop is a generator of events: the command
line writes them to a file, tests collect them in a list.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Literal, TypeVar

import torch

from grpo_engine.config.guards import Guard, restarted, watch
from grpo_engine.config.job import Hyperparameters, RunConfig
from grpo_engine.config.reinforcement import EarlyStopping
from grpo_engine.contract.events import (
    VALIDATION,
    BaseEvent,
    CheckpointSaved,
    Evaluated,
    Finished,
    PhaseChanged,
    Started,
    Stopped,
    Warned,
    quality,
)
from grpo_engine.models.fast import native
from grpo_engine.models.policy import Policy
from grpo_engine.process.fault_points import fault_point
from grpo_engine.training import checkpoint
from grpo_engine.training.micro_batch_budget import Pieces
from grpo_engine.training.optimizer import Optimizer

T = TypeVar("T")


def library_versions() -> dict[str, str]:
    names = ("torch", "transformers", "peft", "grpo-service")
    compiled = "none" if native.library() is None else str(native.VERSION)
    return {
        "python": platform.python_version(),
        **{name: version(name) for name in names},
        "compiled operations": compiled,
    }


class TrainingLoop:
    """Subclasses give `step`, `evaluate`, `num_rows` and `total_steps`."""

    sampler_name = "none"

    def __init__(
        self, config: RunConfig, run_dir: Path, policy: Policy, hyperparameters: Hyperparameters
    ) -> None:
        self.config = config
        self.checkpoints = run_dir / "checkpoints"
        self.policy = policy
        self.loop_settings = hyperparameters
        self.optimizer = Optimizer(policy.trainable, hyperparameters)
        self.state = checkpoint.State()
        self.saved_step = 0
        self.pieces = Pieces(policy, config.runtime.token_budget)
        self.warnings: list[Warned] = []
        self.last_metrics: dict[str, float] = {}
        self.num_rows = 0
        self.total_steps = 0
        self.guards: tuple[Guard, ...] = ()
        self.early_stopping: EarlyStopping | None = None
        self.paused_by_guard = False

    @property
    def last_step(self) -> int:
        """Where training ends: after all steps, or earlier where a guard or early stopping said so."""
        return self.total_steps if self.state.last_step is None else self.state.last_step

    def step(self, step: int) -> Iterator[BaseEvent]:
        """One optimiser step: its events, and `self.state` moved on to it."""
        raise TypeError(f"{type(self).__name__} gives no step")

    def evaluate(self, step: int) -> Iterator[BaseEvent]:
        """Evaluation of the held-out rows; nothing where there are none."""
        return iter(())

    def raise_beta(self) -> float:
        """Double the weight of the KL term; answers it."""
        raise TypeError(f"{type(self).__name__} has no beta")

    def run(self, should_stop: Callable[[], bool]) -> Iterator[BaseEvent]:
        """Train to the end, or to the next step boundary once `should_stop()` says so."""
        try:
            yield from self._run(should_stop)
        finally:
            self.close()

    def _run(self, should_stop: Callable[[], bool]) -> Iterator[BaseEvent]:
        warnings = self._resume()
        yield started(self.policy, self.total_steps, self.state.step, self.sampler_name, self.num_rows)
        yield from warnings
        fault_point("engine.loaded")
        if self.policy.device.type == "cuda":
            self.probe_memory()
        yield PhaseChanged(phase="training", step=self.state.step)
        while True:
            stopping = self._stop_reason(should_stop)
            if self._evaluation_is_due() and not stopping:
                yield from self._evaluate()
                yield PhaseChanged(phase="training", step=self.state.step)
            if self._checkpoint_is_due() or (stopping and self.state.step > self.saved_step):
                yield self._save()
            if stopping:
                yield Stopped(step=self.state.step, reason=stopping)
                return
            if self.state.step == self.last_step:
                break
            yield from self.step(self.state.step + 1)
            fault_point("step.trained")
            yield from self._watch()
        fault_point("training.finished")
        yield self._finished()

    def close(self) -> None:
        """Give back what the method holds outside this process."""

    def in_pieces(self, gradients: Callable[[int], T]) -> T:
        """`gradients(token_budget)` with as many tokens at a time as fit the device."""
        made = self.pieces(gradients, self.optimizer.clear, self.state.step + 1)
        self.warnings += [Warned(code=code, message=message) for code, message in self.pieces.told]
        self.pieces.told.clear()
        return made

    def probe_memory(self) -> None:
        """Meet the largest step before the first one; nothing where the method knows no such thing."""

    def _stop_reason(self, should_stop: Callable[[], bool]) -> Literal["asked", "guard"] | None:
        """Why the run stops here before its end; None: it goes on."""
        if self.state.step == self.last_step:
            return None
        if self.paused_by_guard:
            return "guard"
        return "asked" if should_stop() else None

    def _evaluate(self) -> Iterator[BaseEvent]:
        """An evaluation and what follows from it: the best policy so far, an early end."""
        for event in self.evaluate(self.state.step):
            if isinstance(event, Evaluated):
                if event.name == VALIDATION:
                    self._judge(quality(event.metrics))
                event = event.model_copy(update={"is_final": self.state.step == self.last_step})
            yield event
        self.state = replace(self.state, evaluated_step=self.state.step)
        yield from self._told()

    def _judge(self, found: float) -> None:
        """Note whether this step's policy is the best one; end where too many in a row did not improve.

        An evaluation of which no row could be scored says nothing.
        """
        if not math.isfinite(found):
            return
        step, best, settings = self.state.step, self.state.best_quality, self.early_stopping
        improved = best is None or found > best + (settings.min_improvement if settings else 0.0)
        count = 0 if improved else self.state.without_improvement + 1
        self.state = replace(self.state, without_improvement=count)
        if best is None or found > best:
            self.state = replace(self.state, best_step=step, best_quality=found)
        if settings is not None and count >= settings.patience and step < self.last_step:
            self.state = replace(self.state, last_step=step)
            self._warn("early_stopping", too_long_the_same(settings, self.state, found))

    def _watch(self) -> Iterator[BaseEvent]:
        """What the guards say of the step's metrics, and every other warning of it."""
        alarms, seen = watch(self.guards, self.state.step, self.last_metrics, self.state.guards)
        self.state = replace(self.state, guards=seen)
        for alarm in alarms:
            self._warn(alarm.code, f"{alarm.message} {self._act(alarm.guard)}".strip())
        yield from self._told()

    def _act(self, guard: Guard) -> str:
        """Do what the guard is for; a sentence on it."""
        if guard.action == "raise_beta":
            return f"beta is now {self.raise_beta():.4g}."
        if guard.action == "warn" or self.state.step == self.last_step:
            return ""
        if guard.action == "pause":
            self.paused_by_guard = True
            self.state = replace(self.state, guards=restarted(self.state.guards))
            return "The job is paused; resume it to go on with the same settings."
        self.state = replace(self.state, last_step=self.state.step)
        return f"Training ends after step {self.state.step}."

    def _warn(self, code: str, message: str) -> None:
        self.warnings.append(Warned(code=code, message=message, step=self.state.step))

    def _evaluation_is_due(self) -> bool:
        step = self.state.step
        if step <= self.state.evaluated_step:
            return False
        return step == self.last_step or step % self.loop_settings.eval_every(self.total_steps) == 0

    def _checkpoint_is_due(self) -> bool:
        step = self.state.step
        if step <= self.saved_step:
            return False
        is_wanted = step in (self.last_step, self.state.best_step)
        return is_wanted or step % self.loop_settings.checkpoint_interval == 0

    def _told(self) -> Iterator[BaseEvent]:
        yield from self.warnings
        self.warnings.clear()

    def _resume(self) -> list[BaseEvent]:
        found, skipped = checkpoint.newest_valid(self.checkpoints, self.config)
        if found is not None:
            self.state = checkpoint.load(found, self.policy, self.optimizer)
            self.saved_step = self.state.step
        return [Warned(code="checkpoint_skipped", message=sentence) for sentence in skipped]

    def _save(self) -> CheckpointSaved:
        path = checkpoint.save(
            self.checkpoints, self.config, self.state, self.policy, self.optimizer, library_versions()
        )
        self.saved_step = self.state.step
        # The worker may still be reading the one before the newest.
        keep = max(2, self.loop_settings.max_checkpoints)
        checkpoint.retain(self.checkpoints, keep, self.state.best_step)
        relative = f"{self.checkpoints.name}/{path.name}"
        return CheckpointSaved(step=self.state.step, path=relative, metrics=self.last_metrics)

    def _finished(self) -> Finished:
        best = self.state.best_step
        best_path = None if best is None else self._weights(best)
        has_best = best_path is not None and (self.checkpoints.parent / best_path).is_dir()
        return Finished(
            step=self.state.step,
            path=self._weights(self.state.step),
            num_tokens=self.state.num_tokens,
            best_step=best,
            best_path=best_path if has_best else None,
        )

    def _weights(self, step: int) -> str:
        """Folder of a checkpoint's weights, relative to the run directory."""
        kind = "adapter" if self.policy.peft_model is not None else "model"
        return f"{self.checkpoints.name}/{checkpoint.step_name(step)}/{kind}"


def machine_name(device: torch.device) -> str:
    """The GPU's name, or the processor's with the threads that compute."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    lines = Path("/proc/cpuinfo").read_text().splitlines() if platform.system() == "Linux" else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {torch.get_num_threads()} threads"


def started(policy: Policy, total_steps: int, step: int, sampler_name: str, num_rows: int) -> Started:
    """A run's first event: what it runs with, from `step` on."""
    parameters = list(policy.model.parameters())
    return Started(
        total_steps=total_steps,
        resumed_from_step=step,
        device=str(policy.device),
        machine=machine_name(policy.device),
        dtype=str(policy.model.dtype).removeprefix("torch."),
        sampler=sampler_name,
        num_parameters=sum(p.numel() for p in parameters),
        num_trainable_parameters=sum(p.numel() for p in parameters if p.requires_grad),
        num_rows=num_rows,
        versions=library_versions(),
        base_fingerprint=policy.base_fingerprint,
    )


def seed_step(seed: int, step: int, iteration: int = 0) -> None:
    """Whatever still draws from torch's generator (adapter dropout) depends on these three alone."""
    torch.manual_seed((seed * 1_000_003 + step + iteration * 7_919_000_003) % 2**63)


def too_long_the_same(settings: EarlyStopping, state: checkpoint.State, found: float) -> str:
    """What early stopping saw, why it matters, which field to change."""
    return (
        f"The held-out reward did not rise by more than {settings.min_improvement:.4g} in "
        f"{settings.patience} evaluations in a row: it is {found:.4g}, the best was {state.best_quality:.4g} "
        f"after step {state.best_step}. More training would only fit the training rows, so it ends after "
        f"step {state.step}. A larger early_stopping.patience waits longer."
    )
