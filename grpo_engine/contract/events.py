"""Events of a running engine: one JSON object per line of `events.jsonl`, numbered without gaps.

`files/event_log.py` writes them and sets `sequence` and `at`; the worker reads them.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from grpo_engine.contract.records import GroupRecord, Record

MAX_LINE_BYTES = 16 * 2**20
"""Maximum length of an event's line; readers drop longer lines and count them."""

Split = Literal["train", "validation", "retention"]
VALIDATION = "validation"
"""Name of the evaluation on the job's own held-out rows; any other is a retention set's."""


class BaseEvent(Record):
    sequence: int = 0
    """Position in the job's event stream, from 1, continued across attempts."""
    at: float = 0.0
    """Unix seconds by the engine's clock; for display, never for decisions."""


class Computation(Record):
    """How a run computes its model: the fastest ways that gave the model's own results at load."""

    forward: Literal["kernels", "packed", "padded"]
    """How training computes: with the engine's kernels; with the model's own layers and each prompt computed
    once for its group; or with whole padded rows."""
    decoder: Literal["kernels", "shared_prompts", "own_cache", "whole_rows", "none"] = "none"
    """How sampling computes: the first two as for `forward`; with the model's own cache; or with whole rows
    and no cache. "none": nothing is sampled, or vLLM samples."""
    head: Literal["frozen", "recomputed", "full_logits"]
    """How log-probabilities are computed: in chunks, with the gradient in the forward pass if the output
    layer is frozen and in a second pass otherwise; or from all logits at once."""
    slower_because: dict[str, str] = {}
    """`forward`, `decoder` or `head` → why the run does not use the first of its values, which is fastest."""


class Started(BaseEvent):
    type: Literal["started"] = "started"
    total_steps: int
    resumed_from_step: int = 0
    device: str
    machine: str = ""
    """Device model: jobs on the same one are comparable in speed."""
    dtype: str
    sampler: str
    """`torch`, `vllm`, `remote` (on other devices), `none`, or the model's name on an endpoint."""
    num_parameters: int
    num_trainable_parameters: int
    num_rows: int
    versions: dict[str, str]
    computation: Computation | None = None
    """None if the job uses only models on endpoints."""
    adapter_rank: int | None = None
    """Largest rank of the adapter's matrices; PEFT doubles the rank for experts with fused projections."""
    base_format: str | None = None
    """Format of the quantised weights in the base's files, which were converted; None: no such weights."""
    base_class: str | None = None
    """transformers' class that loads the base for the adapter; None: AutoModelForCausalLM."""
    base_fingerprint: str = ""
    """Fingerprint of the loaded weights (`files/fingerprint.py`); empty without weight files."""


class PhaseChanged(BaseEvent):
    """The engine's current phase, so that a wait never looks like a hang."""

    type: Literal["phase"] = "phase"
    phase: Literal["loading", "probing", "evaluating", "training", "saving"]
    step: int = 0


class StepFinished(BaseEvent):
    type: Literal["step_finished"] = "step_finished"
    step: int
    metrics: dict[str, float]
    """Flat, finite; names follow TRL (`reward`, `kl`, `completions/mean_length`, …)."""


SkipReason = Literal["nothing_scored", "no_signal", "all_masked", "nothing_to_distil"]
"""nothing_scored: no completion has a reward. no_signal: no group has different rewards. all_masked: all
completions with signal are masked. nothing_to_distil: no failed attempt has feedback."""


class StepSkipped(BaseEvent):
    """The step was sampled and scored, but nothing was trained; `reason` says why."""

    type: Literal["step_skipped"] = "step_skipped"
    step: int
    reason: SkipReason
    metrics: dict[str, float]


class RolloutsRecorded(BaseEvent):
    """Groups of a step; a large step is split into several events to keep lines below the limit."""

    type: Literal["rollouts"] = "rollouts"
    step: int
    split: Split = "train"
    name: str = ""
    """The retention set's name, if `split` is `retention`."""
    first: int = 0
    """Position in the step (and split) of the event's first group."""
    groups: tuple[GroupRecord, ...]


class Verdict(Record):
    """An evaluation compared with the one before training: a paired bootstrap over the rows."""

    text: str
    """Such as "+0.124 (95% CI 0.081 to 0.169)" or "+0.022 (95% CI −0.004 to 0.052), not significant"."""
    difference: float | None = None
    """Mean of after − before, in units of the reward; None if too few rows can be compared."""
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
    """Comparison with the evaluation before step 1; None for that one itself, or without rewards."""
    is_final: bool = False
    """Whether this evaluates the final policy of the job."""


class CheckpointSaved(BaseEvent):
    type: Literal["checkpoint_saved"] = "checkpoint_saved"
    step: int
    path: str
    """Relative to the run directory; holds `manifest.json`."""
    metrics: dict[str, float] = {}


class Warned(BaseEvent):
    type: Literal["warning"] = "warning"
    step: int | None = None
    """Step of the warning. A resumed run may repeat the step and its warning, which still counts once."""
    code: str
    message: str


class Stopped(BaseEvent):
    """Stopped early by SIGTERM or paused by a guard. The checkpoint of `step` is complete."""

    type: Literal["stopped"] = "stopped"
    step: int
    reason: Literal["asked", "guard"] = "asked"


class Finished(BaseEvent):
    type: Literal["finished"] = "finished"
    step: int
    path: str
    """Folder of the trained adapter (or whole model), relative to the run directory."""
    num_tokens: int
    """Tokens of all completions that the training steps sampled; supervised: of all turns trained on."""
    best_step: int | None = None
    """Best evaluated step (0: before training); None without held-out rows."""
    best_path: str | None = None
    """Folder of its weights; None if this run directory does not hold them."""


class Probed(BaseEvent):
    """Result of a probe: how the model does on the job's prompts before any training."""

    type: Literal["probed"] = "probed"
    prompts: int
    completions: int
    passed: int
    """Completions with a full reward."""
    groups_with_signal: int
    """Groups whose rewards differ; only these are trained on."""
    groups_solved: int
    """Groups in which every scored completion has a full reward."""
    truncated: int
    """Completions cut at `max_completion_tokens`."""
    grader_errors: int
    """Completions that could not be scored."""
    grader_error: str = ""
    """Reason for the first of these errors."""
    failed_sessions: int = 0
    """Unscored completions whose session with an environment failed; 0 in older probes."""
    session_failure: str = ""
    """Reason for the first failed session."""
    mean_reward: float | None
    """Mean over the scored completions; None if there are none."""
    highest_reward: float | None
    greedy_completions: int = 0
    """Scored completions at temperature 0, one per prompt; 0 in older probes."""
    greedy_passed: int = 0
    """Completions at temperature 0 with a full reward."""
    greedy_mean_reward: float | None = None
    token_surprise_nats: float | None = None
    """Mean of −log(probability) of the sampled tokens; None in older probes."""
    completion_tokens: int
    """Total of all completions."""
    turns: int = 0
    """Turns of all episodes; 0 without environments."""
    sample_seconds: float
    score_seconds: float
    peak_memory_bytes: int


class MergeDifference(Record):
    """A merged model compared with the adapter on the quantised base that it was trained on.

    The values are log-probabilities of held-out completions, in nats. For equal models, the difference is 0.
    """

    rows: int
    """Held-out completions that were compared."""
    tokens: int
    """Tokens of these completions."""
    quantized: float
    """Mean log-probability of a token under the adapter on the quantised base."""
    merged: float
    """The same under the merged model: the adapter in the full-precision base."""
    mean_absolute: float
    """Mean absolute difference of a token's log-probability."""


class Exported(BaseEvent):
    """Result of an export."""

    type: Literal["exported"] = "exported"
    path: str
    """Folder of the merged model, relative to the run directory."""
    difference: MergeDifference | None = None
    """Effect of the merge; None if the base was not quantised or there are no held-out completions."""


class Failed(BaseEvent):
    """The attempt has failed. Another attempt would fail again, except perhaps after an `engine_error`."""

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
    """Parse one line of `events.jsonl`. Raises pydantic's ValidationError."""
    return _adapter.validate_json(line)


def quality(metrics: Mapping[str, float]) -> float:
    """Rank of an evaluation, higher is better: the reward or, without one, the negated loss."""
    if "reward" in metrics:
        return float(metrics["reward"])
    return -float(metrics["loss"]) if "loss" in metrics else -math.inf
