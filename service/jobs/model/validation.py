"""The answer of a check without creation: problems, counts of rows, and the expected cost."""

from typing import Any, Literal

from pydantic import BaseModel


class ProblemRead(BaseModel):
    param: str
    message: str
    alike: int
    """Problems that differ from it by their line and numbers only, itself included."""


class Range(BaseModel):
    low: float
    high: float


class TokenRange(BaseModel):
    low: int
    high: int


class Estimate(BaseModel):
    """Null: unknown; `notes` give the reason, and the basis of the other values."""

    steps: int
    completions: int
    """Sampled in total: prompts × group_size × steps."""
    sampled_tokens: TokenRange
    trained_tokens: TokenRange | None
    peak_memory_bytes: TokenRange | None
    """Peak memory of the engine: the GPU's, or on a CPU that of its process."""
    seconds: Range | None
    """From the fewest tokens at the highest speed to the most at the lowest."""
    likely_seconds: float | None
    """At the median speed and lengths of this model's earlier runs."""
    basis: str | None
    """The runs that `likely_seconds` is from, such as "3 earlier runs with this model on host"."""
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
    """The first hundred."""
    warnings: list[dict[str, str]]
    rows: RowCounts
    total_steps: int
    method: dict[str, Any]
    estimate: Estimate
