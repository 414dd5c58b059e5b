"""What an engine says while it runs: one JSON object a line in `events.jsonl`, numbered without gaps.

Boundary: types and their (de)serialisation only; `journal.py` writes the file, the worker reads it.
`sequence` and `at` are set when the event is written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from grpo_engine.contract.records import GroupRecord, Record

MAX_LINE_BYTES = 16 * 2**20
"""A longer line is not an event: readers drop and count it."""

Split = Literal["train", "validation", "retention"]
VALIDATION = "validation"
"""Name of the evaluation of the job's own held-out rows; any other is a retention set's."""


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
    machine: str = ""
    """What the device is: jobs on the same one are comparable in speed."""
    dtype: str
    sampler: str
    num_parameters: int
    num_trainable_parameters: int
    num_rows: int
    versions: dict[str, str]
    base_fingerprint: str = ""
    """Of the weights that were loaded (`fingerprint.py`); empty where there are none, or not as files."""


class PhaseChanged(BaseEvent):
    """What the engine is busy with, so that a wait never looks like a hang."""

    type: Literal["phase"] = "phase"
    phase: Literal["loading", "probing", "evaluating", "training", "saving"]
    step: int = 0


class StepFinished(BaseEvent):
    type: Literal["step_finished"] = "step_finished"
    step: int
    metrics: dict[str, float]
    """Flat, finite; names follow TRL (`reward`, `kl`, `completions/mean_length`, …)."""


SkipReason = Literal["no_signal", "all_masked", "nothing_to_distil"]
"""No group whose rewards differ; every completion with signal masked; no failed attempt with feedback."""


class StepSkipped(BaseEvent):
    """No group of the step had signal: sampled and scored, nothing trained."""

    type: Literal["step_skipped"] = "step_skipped"
    step: int
    reason: SkipReason
    metrics: dict[str, float]


class RolloutsRecorded(BaseEvent):
    """Groups of a step; a large step takes several events, so that no line grows beyond the limit."""

    type: Literal["rollouts"] = "rollouts"
    step: int
    split: Split = "train"
    name: str = ""
    """The retention set, where `split` says that it is one."""
    first: int = 0
    """Position in the step (and split) of the event's first group."""
    groups: tuple[GroupRecord, ...]


class Verdict(Record):
    """What an evaluation shows against the one before training: a paired bootstrap over the rows."""

    text: str
    """"improved by 12.4 points, 95% 8.1–16.9", "worse by …", "not shown: …"; "kept: …", "lost …"."""
    difference: float | None = None
    """Mean of after − before, in units of the reward; None where too few rows can be compared."""
    low: float | None = None
    high: float | None = None
    """The difference's 95 % interval."""
    rows: int = 0
    """Rows that were scored both times."""


class Evaluated(BaseEvent):
    """Greedy (or sampled) evaluation of held-out rows with the policy after `step` steps."""

    type: Literal["evaluated"] = "evaluated"
    step: int
    name: str = VALIDATION
    """`validation`, or a retention set's name."""
    metrics: dict[str, float]
    """`reward` (mean), `reward_std`, `rewards/<part>/mean`, `completions/mean_length`, `num_rows`."""
    verdict: Verdict | None = None
    """Against the evaluation before step 1; None for that one itself and where there are no rewards."""
    is_final: bool = False
    """Of the policy that the job ends with."""


class CheckpointSaved(BaseEvent):
    type: Literal["checkpoint_saved"] = "checkpoint_saved"
    step: int
    path: str
    """Relative to the run directory; holds `manifest.json`."""
    metrics: dict[str, float] = {}


class Warned(BaseEvent):
    type: Literal["warning"] = "warning"
    step: int | None = None
    """The step it is about: a resumed run that repeats the step repeats the warning, which counts once."""
    code: str
    message: str


class Stopped(BaseEvent):
    """Not at its end: asked to stop (SIGTERM), or paused by a guard. The checkpoint of `step` is complete."""

    type: Literal["stopped"] = "stopped"
    step: int
    reason: Literal["asked", "guard"] = "asked"


class Finished(BaseEvent):
    type: Literal["finished"] = "finished"
    step: int
    path: str
    """Folder of the trained adapter (or whole model), relative to the run directory."""
    num_tokens: int
    """Tokens trained on, over the whole job."""
    best_step: int | None = None
    """Best evaluated step (0: before training); None without held-out rows."""
    best_path: str | None = None
    """Folder of its weights; None where this run directory does not hold them."""


class Probed(BaseEvent):
    """A probe's end: what the model makes of the job's prompts before any training."""

    type: Literal["probed"] = "probed"
    prompts: int
    completions: int
    passed: int
    """Completions with a full reward."""
    groups_with_signal: int
    """Groups whose rewards differ: only these teach anything."""
    groups_solved: int
    """Groups of which every scored completion has a full reward."""
    truncated: int
    """Completions that were cut at `max_completion_tokens`."""
    grader_errors: int
    """Completions that could not be scored."""
    grader_error: str = ""
    """The first reason why one could not."""
    mean_reward: float | None
    """Of the scored completions; None where there are none."""
    highest_reward: float | None
    completion_tokens: int
    """Of all completions together."""
    sample_seconds: float
    score_seconds: float
    peak_memory_bytes: int


class Exported(BaseEvent):
    """An export's end."""

    type: Literal["exported"] = "exported"
    path: str
    """Folder of the merged model, relative to the run directory."""


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
    | Probed
    | Exported
    | Failed,
    Field(discriminator="type"),
]

_adapter: TypeAdapter[Event] = TypeAdapter(Event)


def parse_event(line: str | bytes) -> Event:
    """One line of `events.jsonl` → event. Raises pydantic's ValidationError for anything else."""
    return _adapter.validate_json(line)


def quality(metrics: Mapping[str, float]) -> float:
    """An evaluation's worth, higher is better: the reward, or the loss turned round where there is none."""
    if "reward" in metrics:
        return float(metrics["reward"])
    return -float(metrics["loss"]) if "loss" in metrics else -math.inf
