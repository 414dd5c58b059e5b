"""OpenAI's cursor pages: `after=<last id>` asks for the next one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Generic, Literal, Protocol, TypeVar

from fastapi import Query
from pydantic import BaseModel

from service.platform.errors import NotFound


class HasId(Protocol):
    @property
    def id(self) -> str: ...


Item = TypeVar("Item")
Identified = TypeVar("Identified", bound=HasId)

MAX_NUMBER = 2**53 - 1
"""The largest step or sequence that one may ask for: every JSON reader keeps it, and every database."""

After = Annotated[str | None, Query(max_length=128, description="Id of the last item already seen.")]
Limit = Annotated[int, Query(ge=1, le=100, description="Items of one page.")]


class Page(BaseModel, Generic[Item]):
    """One page; the next one is asked for with `after=<last_id>` while `has_more`."""

    object: Literal["list"] = "list"
    data: list[Item]
    has_more: bool
    first_id: str | None
    last_id: str | None


def page_of(items: Sequence[Identified], limit: int) -> Page[Identified]:
    """A page of at most `limit` items out of a query for `limit + 1`: one more tells that there is more."""
    data = list(items[:limit])
    return Page(
        data=data,
        has_more=len(items) > limit,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
    )


def unknown_cursor(after: str) -> NotFound:
    """The refusal of an `after` that is no item of this list: as with any id, a 404."""
    return NotFound(f"after: {after!r} is not the id of an item of this list", param="after")
