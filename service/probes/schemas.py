"""Responses about probes. Requests are those of jobs (`jobs/model/schemas.py`)."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from service.jobs.model.schemas import ErrorRead, FailureRead, ProgressRead, QueueRead
from service.rollouts.schemas import RolloutRead


class AdviceRead(BaseModel):
    """A field of the request, and how to change it."""

    model_config = ConfigDict(frozen=True)
    param: str
    message: str
    value: str | float | int | None = None
    """The value to set, from the probe's own settings; null if no value follows from the probe."""


class ProbeResult(BaseModel):
    """The model's results on the job's prompts before any training."""

    can_learn: Literal["yes", "no", "maybe"]
    sentence: str
    """Whether GRPO can learn here, and if not, why."""
    advice: list[AdviceRead]
    """Fields of the request to change."""
    prompts: int
    completions: int
    pass_rate: float | None
    """Share of the scored completions with a full reward; null if none could be scored."""
    mean_reward: float | None
    temperature: float
    """Sampling temperature of these completions."""
    greedy_pass_rate: float | None
    """Share of right completions at temperature 0, one per prompt; null in older probes."""
    greedy_mean_reward: float | None
    signal_share: float
    """Share of groups whose rewards differ; the model learns only from these."""
    truncated_share: float
    """Share of completions that were cut at max_completion_tokens."""
    grader_errors: int
    """Completions that could not be scored."""
    grader_error: str
    """The first reason why completions could not be scored; empty if there is none."""
    mean_completion_tokens: float
    mean_turns: float | None
    """Turns of an episode; null without environments."""
    tokens_per_second: float
    """Sampled tokens per second."""
    peak_memory_bytes: int


class ProbeRead(BaseModel):
    """A probe: it is queued like a job, samples, and ends with a result."""

    object: Literal["fine_tuning.probe"] = "fine_tuning.probe"
    id: str
    created_at: int
    started_at: int | None
    finished_at: int | None
    status: str
    phase: str
    queue: QueueRead
    progress: ProgressRead
    model: str
    training_file: str
    method: dict[str, Any]
    seed: int
    prompts: int
    """Requested number of prompts; a smaller file is used in full."""
    warnings: list[Any]
    result: ProbeResult | None
    """Null until the probe succeeds."""
    groups: list[RolloutRead]
    """Some groups, those with different rewards first; empty in lists of probes."""
    error: ErrorRead | None
    failure: FailureRead | None
