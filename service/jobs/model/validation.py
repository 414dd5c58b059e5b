"""The response to a check that creates no job: problems, counts of rows, and the expected cost."""

from typing import Any, Literal

from pydantic import BaseModel


class ProblemRead(BaseModel):
    param: str
    message: str
    alike: int
    """Number of problems that differ only in their line and numbers, this one included."""


class Range(BaseModel):
    low: float
    high: float


class TokenRange(BaseModel):
    low: int
    high: int


class Estimate(BaseModel):
    """Unknown values are null; `notes` explains why, and what the other values are based on."""

    steps: int
    completions: int
    """Number of sampled completions: prompts × group_size × steps."""
    turns: TokenRange | None
    """Turns in environments: from one to max_turns for each completion; null without environments."""
    sampled_tokens: TokenRange
    trained_tokens: TokenRange | None
    peak_memory_bytes: TokenRange | None
    """Peak memory of the engine: GPU memory or, on a CPU, that of its process."""
    seconds: Range | None
    """Duration, from the fewest tokens at the highest speed to the most tokens at the lowest."""
    likely_seconds: float | None
    """Likely duration, at the median speed and completion length of this model's earlier runs."""
    basis: str | None
    """The runs that `likely_seconds` is based on, such as "3 earlier runs with this model on host"."""
    notes: list[str]


class RowCounts(BaseModel):
    training: int
    validation: int


class ValidationRead(BaseModel):
    """Response of `POST /v1/fine_tuning/jobs/validate`."""

    object: Literal["fine_tuning.job.validation"] = "fine_tuning.job.validation"
    valid: bool
    num_problems: int
    problems: list[ProblemRead]
    """The first hundred problems."""
    warnings: list[dict[str, str]]
    rows: RowCounts
    total_steps: int
    method: dict[str, Any]
    estimate: Estimate
