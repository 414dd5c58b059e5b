"""A job's metrics and its live stream, under `…/jobs/{id}`."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from pydantic import BaseModel, StringConstraints
from starlette.concurrency import run_in_threadpool

from service.jobs.api.dependencies import JobId
from service.jobs.api.responses import event_read
from service.jobs.api.shared_view import View, view_of
from service.jobs.model.states import TERMINAL, JobState
from service.jobs.progress import metrics
from service.jobs.progress.stream import JobFeed
from service.jobs.store.repository import require_job
from service.platform.db import Database
from service.platform.feed import notice_lost_connection
from service.platform.tables.core import Job, JobEvent
from service.web.auth import Reader
from service.web.dependencies import DatabaseDep
from service.web.pagination import MAX_NUMBER

router = APIRouter(prefix="/jobs/{job_id}")

RECONNECT_MS = 2000
Name = Annotated[str, StringConstraints(pattern="[^,]")]
Names = Annotated[list[Name] | None, Query(description="Metric names, separated by commas or repeated.")]
AfterStep = Annotated[int, Query(ge=-1, le=MAX_NUMBER, description="Return only later steps.")]
BeforeStep = Annotated[int | None, Query(ge=0, le=MAX_NUMBER, description="Return only earlier steps.")]
MaxPoints = Annotated[
    int | None, Query(ge=2, le=10_000, description="Thin all rows evenly to this number; limit is ignored.")
]
RowLimit = Annotated[int, Query(ge=1, le=10_000, description="Maximum number of rows.")]
AfterEvent = Annotated[
    int | None, Query(ge=0, le=MAX_NUMBER, description="Number of the last event already seen.")
]
Since = Annotated[
    Literal["start", "now"], Query(alias="from", description="Start with the history, or with new events.")
]
LastEventId = Annotated[
    int | None,
    Header(
        alias="Last-Event-ID",
        ge=0,
        le=MAX_NUMBER,
        description="Number of the last event already seen, as browsers send it; overrides after.",
    ),
]


class MetricPage(BaseModel):
    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    """`{"step": …, name: value, …}`"""
    has_more: bool


@router.get("/metrics")
def list_metrics(
    job_id: JobId,
    principal: Reader,
    database: DatabaseDep,
    after_step: AfterStep = -1,
    before_step: BeforeStep = None,
    names: Names = None,
    max_points: MaxPoints = None,
    limit: RowLimit = 1000,
) -> MetricPage:
    """Flat rows in order of steps; `max_points` thins them evenly and keeps both ends.

    From 4 rows on, up to half of them are steps with an evaluation.
    """
    chosen = _split_names(names)
    with database.reading() as session:
        require_job(session, principal.tenant, job_id)
        place = (session, principal.tenant, job_id)
        if max_points is not None:
            rows = metrics.thinned_rows(
                *place,
                after_step=after_step,
                before_step=before_step,
                names=chosen,
                max_points=max_points,
            )
            return MetricPage(data=rows, has_more=False)
        rows = metrics.metric_rows(
            *place, after_step=after_step, before_step=before_step, names=chosen, limit=limit + 1
        )
    return MetricPage(data=rows[:limit], has_more=len(rows) > limit)


@router.get("/metrics.csv", response_class=Response)
def download_metrics(
    job_id: JobId, principal: Reader, database: DatabaseDep, names: Names = None
) -> Response:
    """All metrics as CSV, `step` first."""
    with database.reading() as session:
        require_job(session, principal.tenant, job_id)
        rows = metrics.metric_rows(session, principal.tenant, job_id, names=_split_names(names))
    headers = {"Content-Disposition": f'attachment; filename="{job_id}-metrics.csv"'}
    return Response(metrics.to_csv(rows), media_type="text/csv", headers=headers)


async def _open_feed(request: Request, principal: Reader) -> AsyncIterator[JobFeed]:
    """The feed that all streams of the process share. Counts the stream until its response ends."""
    state = request.app.state
    feed: JobFeed = state.job_feed
    with state.stream_limit.slot(principal.spender):
        yield feed


@router.get("/stream", response_class=Response, responses={200: {"content": {"text/event-stream": {}}}})
async def stream_job(
    job_id: JobId,
    principal: Reader,
    database: DatabaseDep,
    feed: Annotated[JobFeed, Depends(_open_feed)],
    after: AfterEvent = None,
    since: Since = "start",
    last_event_id: LastEventId = None,
) -> Response:
    """Server-sent events `metrics`, `event` and `status`; `id:` is the event's number.

    Starts after `Last-Event-ID` or `after`, by default with the whole history; `from=now` skips the history.
    Ends with the terminal status, or when the API key is revoked or expires. A request after the last event
    gets 204, so that browsers do not reconnect.
    """
    job = await run_in_threadpool(_require, database, principal.tenant, job_id)
    start = last_event_id if last_event_id is not None else after
    if start is None:
        start = job.event_sequence if since == "now" else 0
    if JobState(job.state) in TERMINAL and start >= job.event_sequence:
        return Response(status_code=204)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    view = await run_in_threadpool(view_of, principal, database)
    rows = feed.rows(job_id, start, principal.key_id)
    return EventSourceResponse(_framed(rows, view), headers=headers)


def _require(database: Database, tenant: str, job_id: str) -> Job:
    with database.reading() as session:
        return require_job(session, tenant, job_id)


async def _framed(rows: AsyncGenerator[JobEvent | None], view: View) -> AsyncIterator[bytes]:
    yield format_sse_event(retry=RECONNECT_MS)
    async with aclosing(rows):
        async for row in rows:
            yield KEEPALIVE_COMMENT if row is None else _frame(row, view)
            await notice_lost_connection()


def _frame(row: JobEvent, view: View) -> bytes:
    kind = row.type if row.type in ("metrics", "status") else "event"
    data = event_read(row).model_dump(mode="json") if kind == "event" else row.data
    text = json.dumps(view(data), ensure_ascii=False)
    return format_sse_event(data_str=text, event=kind, id=str(row.sequence))


def _split_names(names: list[str] | None) -> list[str] | None:
    if names is None:
        return None
    return [name for part in names for name in part.split(",") if name]
