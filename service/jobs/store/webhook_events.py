"""Stores webhook deliveries in the transaction that changes a job, so a rolled-back change notifies no one.

`service/webhooks/outbox.py` claims and records them.
"""

from typing import Any, Literal, get_args

from sqlalchemy import ColumnElement, String, bindparam, insert, literal, select

from service.jobs.model.states import JobState
from service.platform.clock import db_now
from service.platform.db import Executor
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

ENDPOINTS = WebhookEndpoint.metadata.tables["webhook_endpoints"]
DELIVERIES = WebhookDelivery.metadata.tables["webhook_deliveries"]


_EVENT_ID, _EVENT_TYPE = bindparam("event_id", type_=String), bindparam("event_type", type_=String)
_COLUMNS: dict[str, ColumnElement[Any]] = {
    "id": _EVENT_ID + "_" + ENDPOINTS.c.id,
    "endpoint_id": ENDPOINTS.c.id,
    "tenant": ENDPOINTS.c.tenant,
    "event_id": _EVENT_ID,
    "event_type": _EVENT_TYPE,
    "job_id": bindparam("job_id", type_=String),
    "created_at": db_now(),
    "state": literal("pending"),
    "due_at": db_now(),
    "claim": literal(0),
    "failures": literal(0),
    "attempts": literal([], DELIVERIES.c.attempts.type),
}
_SUBSCRIBED = (
    select(*_COLUMNS.values())
    .where(ENDPOINTS.c.tenant == bindparam("of_tenant"), ENDPOINTS.c.enabled)
    .where(ENDPOINTS.c.event_types.contains(_EVENT_TYPE))
)
ADD_DELIVERIES = insert(DELIVERIES).from_select(list(_COLUMNS), _SUBSCRIBED)


def has_endpoints(tenant: ColumnElement[str]) -> ColumnElement[bool]:
    """Whether the tenant has any endpoint, enabled or not."""
    return select(ENDPOINTS.c.id).where(ENDPOINTS.c.tenant == tenant).exists().label("has_endpoints")


def add_deliveries(session: Executor, tenant: str, job_id: str, state: JobState) -> None:
    """Store a delivery of a job's new state for each enabled endpoint that subscribes to it."""
    if state in STATES:
        event = {"event_id": new_id("evt", "_"), "event_type": f"fine_tuning.job.{state.value}"}
        session.execute(ADD_DELIVERIES, event | {"of_tenant": tenant, "job_id": job_id})
