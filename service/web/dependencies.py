"""FastAPI dependencies that give endpoints the objects of the application's state.

No session is among them: a service function opens its own transaction, so that the order
commit → wake-up → response is visible in the code. Dependencies that do not wait are `async`, because FastAPI
calls others in threads, and a thread costs a request more than most of its statements.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import Depends, Header, Request

from service.platform.catalog import Catalog
from service.platform.db import Database
from service.platform.storage import Storage
from service.settings import Settings
from service.web.key_use import KeyUse
from service.web.limits import ConcurrencyLimit, RequestRate


def from_state(name: str) -> Callable[[Request], Awaitable[Any]]:
    """A dependency that returns an object of the application's state."""

    async def read(request: Request) -> Any:
        return getattr(request.app.state, name)

    return read


SettingsDep = Annotated[Settings, Depends(from_state("settings"))]
DatabaseDep = Annotated[Database, Depends(from_state("database"))]
StorageDep = Annotated[Storage, Depends(from_state("storage"))]
CatalogDep = Annotated[Catalog, Depends(from_state("catalog"))]
RequestRateDep = Annotated[RequestRate, Depends(from_state("request_rate"))]
KeyUseDep = Annotated[KeyUse, Depends(from_state("key_use"))]
ServerLimitDep = Annotated[ConcurrencyLimit, Depends(from_state("server_limit"))]
RetryCount = Annotated[
    str,
    Header(
        alias="x-stainless-retry-count",
        description="Sent by OpenAI's client; above 0 if it repeats a request that got no response.",
    ),
]


async def _is_retry(count: RetryCount = "0") -> bool:
    """Whether it is a number above 0. It is not converted: Python refuses thousands of digits."""
    return count.isdecimal() and count.strip("0") != ""


IsRetry = Annotated[bool, Depends(_is_retry)]
"""Whether the client repeats a request that got no response."""
