"""FastAPI dependencies of the endpoints of jobs and probes."""

from typing import Annotated

from fastapi import Depends, Header, Path, Request

from service.jobs.intake.creation import Sender
from service.jobs.intake.preflight import Preflight
from service.jobs.store.wakeups import Wakeups
from service.web.auth import Writer
from service.web.dependencies import CatalogDep, DatabaseDep, IsRetry, SettingsDep, StorageDep, from_state

JobId = Annotated[str, Path(description="Id of the job, `ftjob-…`.")]
CheckpointId = Annotated[str, Path(description="Id of the checkpoint, `ftckpt_…`.")]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        description="Repeated requests with the same key and body get the first one's response.",
    ),
]


async def _sender(principal: Writer, is_retry: IsRetry, idempotency_key: IdempotencyKey = None) -> Sender:
    return Sender(principal, idempotency_key, is_retry)


async def _preflight(
    request: Request, database: DatabaseDep, storage: StorageDep, catalog: CatalogDep, settings: SettingsDep
) -> Preflight:
    state = request.app.state
    shared = state.checked_files, state.past_jobs, state.server_limit
    return Preflight(database, storage, catalog, settings, *shared)


WakeupsDep = Annotated[Wakeups, Depends(from_state("wakeups"))]
PreflightDep = Annotated[Preflight, Depends(_preflight)]
SenderDep = Annotated[Sender, Depends(_sender)]
