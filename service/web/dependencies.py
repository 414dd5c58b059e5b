"""What endpoints take from the application's state, as annotations.

There is no session among them: a service function opens its transaction itself, so that the order
commit → wake-up → response stands in the code. They are coroutines though they wait for nothing: each plain
function among a request's dependencies would cost a change of threads.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Header, Request

from service.platform.catalog import Catalog
from service.platform.db import Database
from service.platform.storage import Storage
from service.settings import Settings
from service.web.limits import RequestRate


async def _settings(request: Request) -> Settings:
    return request.app.state.settings  # type: ignore[no-any-return]


async def _database(request: Request) -> Database:
    return request.app.state.database  # type: ignore[no-any-return]


async def _storage(request: Request) -> Storage:
    return request.app.state.storage  # type: ignore[no-any-return]


async def _catalog(request: Request) -> Catalog:
    return request.app.state.catalog  # type: ignore[no-any-return]


async def _request_rate(request: Request) -> RequestRate:
    return request.app.state.request_rate  # type: ignore[no-any-return]


async def _request_id(request: Request) -> str:
    return str(request.state.request_id)


SettingsDep = Annotated[Settings, Depends(_settings)]
DatabaseDep = Annotated[Database, Depends(_database)]
StorageDep = Annotated[Storage, Depends(_storage)]
CatalogDep = Annotated[Catalog, Depends(_catalog)]
RequestRateDep = Annotated[RequestRate, Depends(_request_rate)]
RequestId = Annotated[str, Depends(_request_id)]
RetryCount = Annotated[str, Header(alias="x-stainless-retry-count")]
"""What OpenAI's client says of a request that it sends again because no answer came."""


def is_retry(count: str) -> bool:
    """Whether it is a number above 0, of any length: Python reads no number of thousands of digits."""
    return count.isdecimal() and count.strip("0") != ""
