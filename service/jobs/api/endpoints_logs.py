"""A job's log, under `…/jobs/{id}`: in pages, or as a text file."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from service.jobs.api.dependencies import JobId
from service.jobs.progress import logs
from service.jobs.store.repository import require_job
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


class LogLineRead(BaseModel):
    """A line that a process of the job's engine printed, without control characters and secrets."""

    sequence: int
    """Number of the line in the job's log, for `after`."""
    created_at: float
    """When the service stored the line, a few seconds after it was printed; Unix seconds."""
    attempt: int
    """Number of the attempt that printed it, from 1."""
    rank: int | None
    """Number of the training process; null: the process that starts them on a cluster."""
    text: str
    """The line, cut after 2,000 characters."""


class LogPage(BaseModel):
    object: Literal["list"] = "list"
    data: list[LogLineRead]
    has_more: bool


@router.get(
    "/logs",
    response_model=LogPage,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def list_logs(
    job_id: JobId,
    principal: Reader,
    database: DatabaseDep,
    after: AfterLine = 0,
    tail: Tail = None,
    limit: LineLimit = 1000,
    format: LogFormat = "json",
) -> LogPage | Response:
    """Lines that the job's engine has printed in all attempts, oldest first; the newest 8 MiB are kept.

    While the job runs, new lines appear every few seconds. If lines after `after` were dropped, the first one
    says how many.
    """
    with database.reading() as session:
        require_job(session, principal.tenant, job_id)
        if format == "json":
            last = logs.last_sequence(session, job_id)
            start = max(after, last - tail) if tail else after
            found = logs.lines_after(session, job_id, start, limit)
            has_more = bool(found) and found[-1].sequence < last
            return LogPage(data=[LogLineRead(**vars(line)) for line in found], has_more=has_more)
    headers = {"Content-Disposition": f'attachment; filename="{job_id}.log"'}
    return StreamingResponse(logs.as_text(database, job_id), media_type="text/plain", headers=headers)
