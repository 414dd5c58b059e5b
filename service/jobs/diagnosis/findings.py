"""The records of a diagnosis: findings, each with its evidence and a patch for a clone."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel

Severity = Literal["error", "warning", "info"]
Change = dict[str, Any]
"""A suggestion: only the `field` to change, or the four values that `Run.change` returns."""


class Compared(BaseModel):
    """One of the two numbers that a finding compares."""

    label: str
    value: float
    step: int | None = None
    """Last step of the number's window; null for a limit."""


class DiagnosisFinding(BaseModel):
    code: str
    """Stable: a failure's own code, or the name of the problem."""
    severity: Severity
    """`error`: it ended the job. `warning`: the job learns poorly because of it. `info`: for information."""
    cause: str
    evidence: list[str]
    """Numbers and steps as they are stored."""
    compared: list[Compared] = []
    """The two numbers whose difference is the reason; empty if the finding compares none."""
    advice: str
    field: str | None = None
    """The request's field to change; null if the change is outside the request."""
    current: Any = None
    suggested: Any = None
    patch: dict[str, Any] | None = None
    """Body for `POST …/{id}/clone`; null if only a person can decide the value."""
    count: int | None = None
    """Number of a guard's warnings; null for other findings."""
    first_step: int | None = None
    last_step: int | None = None
    """Steps of the guard's first and last warning."""


class Diagnosis(BaseModel):
    object: Literal["fine_tuning.job.diagnosis"] = "fine_tuning.job.diagnosis"
    job_id: str
    status: str
    step: int
    summary: str
    findings: list[DiagnosisFinding]
    """Findings, the worst first."""


def finding(
    code: str,
    cause: str,
    evidence: list[str],
    advice: str,
    change: Change,
    severity: Severity = "warning",
    compared: Sequence[Compared] = (),
) -> DiagnosisFinding:
    return DiagnosisFinding(
        code=code,
        severity=severity,
        cause=cause,
        evidence=evidence,
        compared=list(compared),
        advice=advice,
        **change,
    )


def number(value: float) -> str:
    """Three significant digits."""
    return f"{value:.3g}"


def rounded(value: float) -> float:
    """Two significant digits, as a person would write a setting."""
    return float(f"{value:.1e}")
