"""What a worker knows of the job that it holds."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from sqlalchemy import Table

from service.platform.tables.core import Job


class ClaimedJob(NamedTuple):
    """A job as it was when it was claimed; fields as in `Job`. Whoever holds it has these and the fence."""

    id: str
    tenant: str
    pool: str
    fence: int
    attempt: int
    created_at: float
    model: str
    training_file: str
    validation_file: str | None
    suffix: str | None
    seed: int
    method: dict[str, Any]
    probe: dict[str, Any] | None
    export: dict[str, Any] | None
    required_capabilities: str
    required_gpus: int
    checkpoint_step: int
    engine_sequence: int
    event_sequence: int


COLUMNS = tuple(cast(Table, Job.__table__).c[name] for name in ClaimedJob._fields)
