"""`/v1/webhook_event_types`, as in OpenAI's API."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from service.jobs.store.webhook_events import EVENT_TYPES, EventType
from service.web.auth import Reader

router = APIRouter(prefix="/v1/webhook_event_types", tags=["webhooks"])


class EventTypeList(BaseModel):
    object: Literal["list"] = "list"
    data: list[EventType]


@router.get("")
def list_event_types(principal: Reader) -> EventTypeList:
    """All event types."""
    return EventTypeList(data=list(EVENT_TYPES))
