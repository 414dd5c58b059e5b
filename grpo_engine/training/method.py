"""The protocols between the training loop and what it drives: a method and its artifact.

A method makes the steps (`trainer.py`, `supervised.py`, `probe.py`, `training_free/trainer.py`). An artifact
is what a checkpoint holds beside the run's state. `loop.py` does everything around the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from grpo_engine.contract.events import BaseEvent, Finished, Started


class Method(Protocol):
    """A training method. Members with a body are optional: inherit from `Method` to get them."""

    total_steps: int
    phase: Literal["training", "probing"] = "training"
    has_held_out_rows: bool = False

    @property
    def num_tokens(self) -> int:
        """Completion tokens processed in all steps so far."""
        return 0

    def started(self, step: int) -> Started:
        """The run's first event; the run resumes after `step` (0: from the start)."""
        ...

    def prepare(self) -> None:
        """Called once, before the first step or evaluation."""
        return

    def step(self, step: int) -> Iterator[BaseEvent]:
        """Make step 1, 2, …; yields its events, one of them StepFinished or StepSkipped."""
        ...

    def evaluate(self, step: int) -> Iterator[BaseEvent]:
        """Evaluate the held-out rows with the result of `step`; yields rollouts and Evaluated events."""
        yield from ()

    def finish(self, finished: Finished) -> Iterator[BaseEvent]:
        """The run's last events; `finished` describes the artifact."""
        yield finished

    def state_dict(self) -> dict[str, Any]:
        """JSON from which `load_state` continues exactly."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()` of an earlier run."""
        return

    def close(self) -> None:
        """Release what the method holds outside this process."""
        return


class Artifact(Protocol):
    """What a run produces: weights with their optimiser state, or an experience library."""

    @property
    def folder_name(self) -> str:
        """Folder of the result in a checkpoint: `adapter`, `model` or `experiences`."""
        ...

    def facts(self) -> dict[str, Any]:
        """Entries of the checkpoint's manifest beside the job and the step."""
        ...

    def writer(self) -> Callable[[Path], None]:
        """Collect the content from all ranks, each of which must call; the result writes it into a folder."""
        ...

    def load(self, folder: Path) -> None:
        """Restore the content of a checkpoint that `checkpoint.newest_valid` chose."""
        ...
