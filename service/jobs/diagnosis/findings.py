"""The shapes of a diagnosis: findings, each with its evidence and a patch for a clone.

Boundary: shapes, and the numbers' way of being written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


class DiagnosisFinding(BaseModel):
    code: str
    """Stable: a failure's own code, or the name of what is wrong with the run."""
    severity: Severity
    """`error`: it ended the job. `warning`: it costs the job its success. `info`: worth knowing."""
    cause: str
    evidence: list[str]
    """Numbers and steps as they are stored."""
    advice: str
    field: str | None = None
    """The request's field to change; null if the change is outside the request."""
    current: Any = None
    suggested: Any = None
    patch: dict[str, Any] | None = None
    """Body for `POST …/{id}/clone`; null if only a person can decide the value."""


class Diagnosis(BaseModel):
    object: Literal["fine_tuning.job.diagnosis"] = "fine_tuning.job.diagnosis"
    job_id: str
    status: str
    step: int
    summary: str
    findings: list[DiagnosisFinding]
    """The worst first."""


def nested(path: str, value: Any) -> dict[str, Any]:
    """`a.b` and 1 → {"a": {"b": 1}}."""
    for name in reversed(path.split(".")):
        value = {name: value}
    return dict(value)


def value_at(document: Any, path: str) -> Any:
    """What is there, or None."""
    for name in path.split("."):
        document = document.get(name) if isinstance(document, Mapping) else None
    return document


def number(value: float) -> str:
    """Three digits that count."""
    return f"{value:.3g}"


def rounded(value: float) -> float:
    """A setting that a person would write."""
    return float(f"{value:.1e}")
