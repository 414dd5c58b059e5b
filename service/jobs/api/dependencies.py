"""What the endpoints of jobs and probes take from the application's state, as annotations."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from service.jobs.store.wakeups import Wakeups


async def _wakeups(request: Request) -> Wakeups:
    return request.app.state.wakeups  # type: ignore[no-any-return]


WakeupsDep = Annotated[Wakeups, Depends(_wakeups)]
