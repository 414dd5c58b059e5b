"""What the endpoints of jobs and probes take from the application's state, as annotations."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Header, Path

from service.jobs.intake.checks.checked_files import CheckedFiles
from service.jobs.intake.costs import PastJobs
from service.jobs.intake.preflight import Preflight
from service.jobs.store.wakeups import Wakeups
from service.web.dependencies import CatalogDep, DatabaseDep, SettingsDep, StorageDep, from_state

WakeupsDep = Annotated[Wakeups, Depends(from_state("wakeups"))]
CheckedFilesDep = Annotated[CheckedFiles, Depends(from_state("checked_files"))]
PastJobsDep = Annotated[PastJobs, Depends(from_state("past_jobs"))]


def _preflight(
    database: DatabaseDep,
    storage: StorageDep,
    catalog: CatalogDep,
    settings: SettingsDep,
    checked_files: CheckedFilesDep,
    past_jobs: PastJobsDep,
) -> Preflight:
    return Preflight(database, storage, catalog, settings, checked_files, past_jobs)


PreflightDep = Annotated[Preflight, Depends(_preflight)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        description="Repeated requests with the same key and body get the first one's response.",
    ),
]
JobId = Annotated[str, Path(description="Id of the job, `ftjob-…`.")]
CheckpointId = Annotated[str, Path(description="Id of the checkpoint, `ftckpt_…`.")]
