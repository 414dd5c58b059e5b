"""The log of a job, probe or export, in pages or as a text file; and that of a job under `…/jobs/{id}`."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from service.jobs.api.dependencies import JobId
from service.jobs.progress import logs
from service.jobs.store.repository import require_job
from service.platform.db import Database
from service.web.auth import Reader
from service.web.dependencies import DatabaseDep
from service.web.pagination import MAX_NUMBER

router = APIRouter(prefix="/jobs/{job_id}")

AfterLine = Annotated[int, Query(ge=0, le=MAX_NUMBER, description="Number of the last line already seen.")]
Tail = Annotated[
    int | None, Query(ge=1, le=MAX_NUMBER, description="Start at most this many lines before the end.")
]
LineLimit = Annotated[int, Query(ge=1, le=5000, description="Lines of one page; long lines make it shorter.")]
LogFormat = Annotated[
    Literal["json", "text"],
    Query(description="`text` downloads the whole log as text/plain; the other parameters are ignored."),
]


class LogPage(BaseModel):
    object: Literal["list"] = "list"
    data: list[logs.LogLineRead]
    has_more: bool


LOG_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}}
}


@dataclass(frozen=True)
class LogQuery:
    """Which lines of a log, and in which form."""

    after: AfterLine = 0
    tail: Tail = None
    limit: LineLimit = 1000
    format: LogFormat = "json"

    def answer(self, database: Database, row_id: str) -> LogPage | Response:
        """The log of a job, probe or export. The caller has checked access."""
        if self.format == "text":
            headers = {"Content-Disposition": f'attachment; filename="{row_id}.log"'}
            return StreamingResponse(logs.as_text(database, row_id), media_type="text/plain", headers=headers)
        with database.reading() as session:
            last = logs.last_sequence(session, row_id)
            start = max(self.after, last - self.tail) if self.tail else self.after
            found = logs.lines_after(session, row_id, start, self.limit)
        has_more = bool(found) and found[-1].sequence < last
        return LogPage(data=found, has_more=has_more)


LogQueryDep = Annotated[LogQuery, Depends()]


@router.get("/logs", response_model=LogPage, responses=LOG_RESPONSES)
def list_logs(
    job_id: JobId, principal: Reader, database: DatabaseDep, query: LogQueryDep
) -> LogPage | Response:
    """Lines that the job's engine has printed in all attempts, oldest first; the newest 8 MiB are kept.

    While the job runs, new lines appear every few seconds. If lines after `after` were dropped, the first one
    says how many.
    """
    with database.reading() as session:
        require_job(session, principal.tenant, job_id)
    return query.answer(database, job_id)
