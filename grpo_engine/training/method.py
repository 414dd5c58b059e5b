"""The interfaces of a method and of its artifact, which the training loop uses.

A method makes the steps (`trainer.py`, `supervised.py`, `probe.py`, `training_free/trainer.py`). A checkpoint
holds an artifact beside the run's state. `loop.py` does everything around the steps.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Protocol

from grpo_engine.contract.events import BaseEvent, Finished, Warned
from grpo_engine.models.policy import Policy


@dataclass(frozen=True, slots=True)
class MethodState:
    """A method's part of a run's state, in fields that JSON can hold. Methods extend it."""

    policy_version: int = 0
    num_tokens: int = 0
    """Completion or target tokens of all steps so far."""

    def metrics(self) -> dict[str, float]:
        return {"num_tokens": float(self.num_tokens), "policy_version": float(self.policy_version)}


class Method(Protocol):
    """A training method. Members with a body are optional: inherit from `Method` to get them."""

    total_steps: int
    num_rows: int
    """Rows of the training file."""
    policy: Policy | None
    """The job's own model; None: only endpoints are used."""
    state: MethodState
    sampler_name: str = "none"
    trains_weights: bool = True
    phase: Literal["training", "probing"] = "training"
    has_held_out_rows: bool = False

    def prepare(self) -> None:
        """Prepare the run. Called once, before the first step or evaluation."""
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
        return {each.name: getattr(self.state, each.name) for each in fields(self.state)}

    def load_state(self, state: Mapping[str, Any]) -> list[Warned]:
        """Continue from `state_dict()` of an earlier run; returns warnings of what has changed since."""
        self.state = type(self.state)(**state)
        return []

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

    @property
    def is_sharded(self) -> bool:
        """Whether each rank writes a shard of the content on its own host."""
        ...

    def write(self, folder: Path | None) -> Path | None:
        """Write the content; every rank must call it. Returns this rank's shard, if the content is sharded.

        `folder`: None on all ranks but the first, unless the content is sharded.
        """
        ...

    def load(self, folder: Path) -> None:
        """Restore the content of a checkpoint that `checkpoint.newest_valid` chose."""
        ...
