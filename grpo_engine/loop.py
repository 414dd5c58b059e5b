"""What every training run has around its steps: resume, evaluate, checkpoint, stop, finish.

A method (`trainer.py`, `supervised.py`) gives the steps. The loop is a generator of events: the command
line writes them to a file, tests collect them in a list.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import torch

from grpo_engine import checkpoint
from grpo_engine.config import Hyperparameters, RunConfig
from grpo_engine.errors import DeviceMemoryError
from grpo_engine.events import (
    BaseEvent,
    CheckpointSaved,
    Finished,
    PhaseChanged,
    Started,
    Stopped,
    Warned,
)
from grpo_engine.optim import Optimizer
from grpo_engine.policy import Policy

T = TypeVar("T")

SMALLEST_TOKEN_BUDGET = 64
"""Below it a micro-batch is a single completion anyway."""


def library_versions() -> dict[str, str]:
    names = ("torch", "transformers", "peft", "grpo-service")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


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
        self.token_budget = config.runtime.token_budget
        self.warnings: list[Warned] = []
        self.last_metrics: dict[str, float] = {}
        self.num_rows = 0
        self.total_steps = 0

    def step(self, step: int) -> Iterator[BaseEvent]:
        """One optimiser step: its events, and `self.state` moved on to it."""
        raise TypeError(f"{type(self).__name__} gives no step")

    def evaluate(self, step: int) -> Iterator[BaseEvent]:
        """Evaluation of the held-out rows; nothing where there are none."""
        return iter(())

    def run(self, should_stop: Callable[[], bool]) -> Iterator[BaseEvent]:
        """Train to the end, or to the next step boundary once `should_stop()` says so."""
        warnings = self._resume()
        yield self._started()
        yield from warnings
        yield PhaseChanged(phase="training", step=self.state.step)
        while True:
            stopping = should_stop() and self.state.step < self.total_steps
            if self._evaluation_is_due() and not stopping:
                yield from self.evaluate(self.state.step)
                self.state = replace(self.state, evaluated_step=self.state.step)
            if self._checkpoint_is_due() or (stopping and self.state.step > self.saved_step):
                yield self._save()
            if stopping:
                yield Stopped(step=self.state.step)
                return
            if self.state.step == self.total_steps:
                break
            yield from self.step(self.state.step + 1)
            yield from self._told()
        yield self._finished()

    def in_pieces(self, gradients: Callable[[int], T]) -> T:
        """`gradients(token_budget)`, again with half the budget where the device is too small for it.

        Smaller pieces are the same mathematics. Raises DeviceMemoryError where the smallest do not fit.
        """
        while True:
            try:
                return gradients(self.token_budget)
            except torch.OutOfMemoryError as error:
                self.optimizer.clear()
                torch.cuda.empty_cache()
                if self.token_budget <= SMALLEST_TOKEN_BUDGET:
                    message = f"step {self.state.step + 1} does not fit the device's memory"
                    raise DeviceMemoryError(message, evidence=(str(error)[:500],)) from error
                self.token_budget //= 2
                message = f"out of memory: the step is repeated with {self.token_budget} tokens at a time"
                self.warnings.append(Warned(code="token_budget_halved", message=message))

    def _evaluation_is_due(self) -> bool:
        step = self.state.step
        if step <= self.state.evaluated_step:
            return False
        return step == self.total_steps or step % self.loop_settings.eval_every(self.total_steps) == 0

    def _checkpoint_is_due(self) -> bool:
        step = self.state.step
        if step <= self.saved_step:
            return False
        return step == self.total_steps or step % self.loop_settings.checkpoint_interval == 0

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
        checkpoint.retain(self.checkpoints, max(2, self.loop_settings.max_checkpoints))
        relative = f"{self.checkpoints.name}/{path.name}"
        return CheckpointSaved(step=self.state.step, path=relative, metrics=self.last_metrics)

    def _finished(self) -> Finished:
        kind = "adapter" if self.policy.peft_model is not None else "model"
        path = f"{self.checkpoints.name}/step-{self.state.step:08d}/{kind}"
        return Finished(step=self.state.step, path=path, num_tokens=self.state.num_tokens)

    def _started(self) -> Started:
        parameters = list(self.policy.model.parameters())
        return Started(
            total_steps=self.total_steps,
            resumed_from_step=self.state.step,
            device=str(self.policy.device),
            dtype=str(self.policy.model.dtype).removeprefix("torch."),
            sampler=self.sampler_name,
            num_parameters=sum(p.numel() for p in parameters),
            num_trainable_parameters=sum(p.numel() for p in parameters if p.requires_grad),
            num_rows=self.num_rows,
            versions=library_versions(),
        )


def seed_step(seed: int, step: int) -> None:
    """Whatever still draws from torch's generator (adapter dropout) depends on (seed, step) alone."""
    torch.manual_seed((seed * 1_000_003 + step) % 2**63)
