"""Deliveries for a tenant's webhooks, as rows that are written with the change of a job itself.

The rows come from one INSERT … SELECT over the tenant's endpoints, so a change whose transaction is rolled
back tells nothing, and a tenant without endpoints costs a look into an index.
Boundary: the statement, which `history.py` runs; the webhooks' outbox takes it from there.
"""

from __future__ import annotations

from typing import Any, Literal, cast, get_args

from sqlalchemy import ColumnElement, Insert, String, Table, bindparam, insert, literal, select

from service.jobs.model.states import JobState
from service.platform.clock import db_now
from service.platform.ids import new_id
from service.platform.tables.webhooks import WebhookDelivery, WebhookEndpoint

EventType = Literal[
    "fine_tuning.job.cancelled",
    "fine_tuning.job.failed",
    "fine_tuning.job.paused",
    "fine_tuning.job.succeeded",
]
EVENT_TYPES: tuple[EventType, ...] = get_args(EventType)
STATES = {JobState.CANCELLED, JobState.FAILED, JobState.PAUSED, JobState.SUCCEEDED}

ENDPOINTS = cast(Table, WebhookEndpoint.__table__)
DELIVERIES = cast(Table, WebhookDelivery.__table__)


def parameters(state: JobState) -> dict[str, Any]:
    """A new event for `announcement`; empty for a state that nobody is told of."""
    if state not in STATES:
        return {}
    return {"event_id": new_id("evt", "_"), "event_type": f"fine_tuning.job.{state.value}"}


def announcement(tenant: ColumnElement[str], job_id: ColumnElement[str]) -> Insert:
    """A delivery for each of the tenant's endpoints that want this event."""
    event_id, event_type = bindparam("event_id", type_=String), bindparam("event_type", type_=String)
    columns: dict[str, ColumnElement[Any]] = {
        "id": event_id + "_" + ENDPOINTS.c.id,
        "endpoint_id": ENDPOINTS.c.id,
        "tenant": ENDPOINTS.c.tenant,
        "event_id": event_id,
        "event_type": event_type,
        "job_id": job_id,
        "created_at": db_now(),
        "state": literal("pending"),
        "due_at": db_now(),
        "claim": literal(0),
        "failures": literal(0),
        "attempts": literal([], DELIVERIES.c.attempts.type),
    }
    wanting = (
        select(*columns.values())
        .where(ENDPOINTS.c.tenant == tenant, ENDPOINTS.c.enabled)
        .where(ENDPOINTS.c.event_types.contains(event_type))
    )
    return insert(DELIVERIES).from_select(list(columns), wanting)
