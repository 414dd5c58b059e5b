"""What a probe's answer has. Boundary: shapes only; its request is a job's (`jobs/schemas.py`)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from service.jobs.model.schemas import ErrorRead, FailureRead, ProgressRead, QueueRead
from service.rollouts.schemas import RolloutRead


class AdviceRead(BaseModel):
    param: str
    message: str


class ProbeResult(BaseModel):
    """What the model makes of the job's prompts before any training."""

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
    signal_share: float
    """Share of groups whose rewards differ: only these teach anything."""
    truncated_share: float
    """Share of completions that were cut at max_completion_tokens."""
    grader_errors: int
    """Completions that could not be scored."""
    grader_error: str
    """The first reason why one could not."""
    mean_completion_tokens: float
    tokens_per_second: float
    """Sampled."""
    peak_memory_bytes: int


class ProbeRead(BaseModel):
    """A probe: it waits in the queue like a job, samples, and ends with a result."""

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
    """Asked for; a smaller file is taken whole."""
    warnings: list[Any]
    result: ProbeResult | None
    """Null until it has succeeded."""
    groups: list[RolloutRead]
    """Some of its groups, first those whose rewards differ; in a list of probes none."""
    error: ErrorRead | None
    failure: FailureRead | None
