"""Is it alive, is it ready, what does it count. No key is needed, so only neutral numbers are told."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from sqlalchemy import func, select

from service.clock import db_now
from service.db import Database
from service.dependencies import DatabaseDep, SettingsDep
from service.handlers import DATABASE_ERRORS
from service.jobs.states import JobState
from service.jobs.wakeups import broker_check
from service.migrate import current_revision, head_revision
from service.models import Job

router = APIRouter(tags=["operations"])


@router.get("/livez")
def live() -> dict[str, str]:
    """The process answers; nothing else is asked."""
    return {"status": "alive"}


@router.get("/readyz")
def ready(database: DatabaseDep, settings: SettingsDep) -> JSONResponse:
    """503 without database or on another schema. Without broker only degraded: workers find jobs later."""
    checks = {"database": _database_check(database), "broker": broker_check(settings)}
    if checks["database"] != "ok":
        return JSONResponse({"status": "unready", "checks": checks}, status_code=503)
    is_whole = checks["broker"] in ("ok", "none")
    return JSONResponse({"status": "ready" if is_whole else "degraded", "checks": checks})


@router.get("/metrics", response_class=Response)
def metrics(database: DatabaseDep) -> Response:
    """Prometheus text: jobs by state and pool, the oldest one's wait, whether the database answers."""
    registry = CollectorRegistry()
    registry.register(_Jobs(database))  # type: ignore[arg-type]
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


def _database_check(database: Database) -> str:
    try:
        found = current_revision(database.engine)
    except DATABASE_ERRORS:
        return "no answer"
    needed = head_revision()
    return "ok" if found == needed else f"schema is {found}, {needed} is needed: run `grpo migrate`"


class _Jobs:
    """Asks the database when Prometheus asks us."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily("grpo_build", "This build.", labels=["version"])
        build.add_metric([version("grpo-service")], 1)
        yield build
        try:
            rows = _count_jobs(self._database)
        except DATABASE_ERRORS:
            yield GaugeMetricFamily("grpo_database_up", "Whether the database answers.", value=0)
            return
        yield GaugeMetricFamily("grpo_database_up", "Whether the database answers.", value=1)
        jobs = GaugeMetricFamily("grpo_jobs", "Jobs by state and pool.", labels=["state", "pool"])
        waits = GaugeMetricFamily("grpo_oldest_queued_seconds", "Longest wait in the queue.", labels=["pool"])
        for state, pool, num_jobs, seconds in rows:
            jobs.add_metric([state, pool], num_jobs)
            if state == JobState.QUEUED:
                waits.add_metric([pool], max(0.0, seconds))
        yield from (jobs, waits)


def _count_jobs(database: Database) -> list[tuple[str, str, int, float]]:
    oldest_seconds = db_now() - func.min(Job.created_at)
    query = select(Job.state, Job.pool, func.count(), oldest_seconds).group_by(Job.state, Job.pool)
    with database.reading() as session:
        return [(state, pool, num_jobs, seconds) for state, pool, num_jobs, seconds in session.execute(query)]
