"""What an engine says while it runs: one JSON object a line in `events.jsonl`, numbered without gaps.

Boundary: types and their (de)serialisation only; `journal.py` writes the file, the worker reads it.
`sequence` and `at` are set when the event is written.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from grpo_engine.records import GroupRecord, Record

MAX_LINE_BYTES = 16 * 2**20
"""A longer line is not an event: readers drop and count it."""

Split = Literal["train", "validation"]


class BaseEvent(Record):
    sequence: int = 0
    """Position in the job's event stream, from 1; goes on across attempts."""
    at: float = 0.0
    """Unix seconds by the engine's clock; for people only, never for decisions."""


class Started(BaseEvent):
    type: Literal["started"] = "started"
    total_steps: int
    resumed_from_step: int = 0
    device: str
    dtype: str
    sampler: str
    num_parameters: int
    num_trainable_parameters: int
    num_rows: int
    versions: dict[str, str]


class PhaseChanged(BaseEvent):
    """What the engine is busy with, so that a wait never looks like a hang."""

    type: Literal["phase"] = "phase"
    phase: Literal["loading", "evaluating", "training", "saving"]
    step: int = 0


class StepFinished(BaseEvent):
    type: Literal["step_finished"] = "step_finished"
    step: int
    metrics: dict[str, float]
    """Flat, finite; names follow TRL (`reward`, `kl`, `completions/mean_length`, …)."""


class StepSkipped(BaseEvent):
    """No group of the step had signal: sampled and scored, nothing trained."""

    type: Literal["step_skipped"] = "step_skipped"
    step: int
    reason: Literal["no_signal"]
    metrics: dict[str, float]


class RolloutsRecorded(BaseEvent):
    """Groups of a step; a large step takes several events, so that no line grows beyond the limit."""

    type: Literal["rollouts"] = "rollouts"
    step: int
    split: Split = "train"
    first: int = 0
    """Position in the step of the event's first group."""
    groups: tuple[GroupRecord, ...]


class Evaluated(BaseEvent):
    """Greedy (or sampled) evaluation of the held-out rows with the policy after `step` steps."""

    type: Literal["evaluated"] = "evaluated"
    step: int
    metrics: dict[str, float]
    """`reward` (mean), `reward_std`, `rewards/<part>/mean`, `completions/mean_length`, `num_rows`."""


class CheckpointSaved(BaseEvent):
    type: Literal["checkpoint_saved"] = "checkpoint_saved"
    step: int
    path: str
    """Relative to the run directory; holds `manifest.json`."""
    metrics: dict[str, float] = {}


class Warned(BaseEvent):
    type: Literal["warning"] = "warning"
    code: str
    message: str


class Stopped(BaseEvent):
    """Asked to stop (SIGTERM); the checkpoint of `step` is complete."""

    type: Literal["stopped"] = "stopped"
    step: int


class Finished(BaseEvent):
    type: Literal["finished"] = "finished"
    step: int
    path: str
    """Folder of the trained adapter (or whole model), relative to the run directory."""
    num_tokens: int
    """Tokens trained on, over the whole job."""


class Failed(BaseEvent):
    """The job cannot succeed; running it again would fail again."""

    type: Literal["failed"] = "failed"
    code: str
    message: str
    hint: str = ""
    evidence: tuple[str, ...] = ()


Event = Annotated[
    Started
    | PhaseChanged
    | StepFinished
    | StepSkipped
    | RolloutsRecorded
    | Evaluated
    | CheckpointSaved
    | Warned
    | Stopped
    | Finished
    | Failed,
    Field(discriminator="type"),
]

_adapter: TypeAdapter[Event] = TypeAdapter(Event)


def parse_event(line: str | bytes) -> Event:
    """One line of `events.jsonl` → event. Raises pydantic's ValidationError for anything else."""
    return _adapter.validate_json(line)
