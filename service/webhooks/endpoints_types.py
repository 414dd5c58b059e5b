"""`/v1/webhook_event_types`: what OpenAI's client asks for beside the endpoints themselves."""

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
    """What an endpoint can be told of."""
    return EventTypeList(data=list(EVENT_TYPES))
