"""OpenAI's cursor pages: `after=<last id>` requests the next one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Generic, Literal, Protocol, TypeVar

from fastapi import Query
from pydantic import BaseModel


class HasId(Protocol):
    @property
    def id(self) -> str: ...


Item = TypeVar("Item")
Identified = TypeVar("Identified", bound=HasId)

MAX_NUMBER = 2**53 - 1
"""Largest step or event number in a request; every JSON reader and database stores it exactly."""

After = Annotated[str | None, Query(max_length=128, description="Id of the last item already seen.")]
Limit = Annotated[int, Query(ge=1, le=100, description="Items of one page.")]


class Page(BaseModel, Generic[Item]):
    """One page; if `has_more`, request the next one with `after=<last_id>`."""

    object: Literal["list"] = "list"
    data: list[Item]
    has_more: bool
    first_id: str | None
    last_id: str | None


def page_of(items: Sequence[Identified], limit: int) -> Page[Identified]:
    """A page of at most `limit` items, from a query for `limit + 1` that shows whether there are more."""
    data = list(items[:limit])
    return Page(
        data=data,
        has_more=len(items) > limit,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
    )
