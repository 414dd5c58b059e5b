"""`/metrics` for Prometheus. It needs no API key, so it names no tenant, job or key.

Job metrics are read from the database at each scrape, so all API processes return the same. Request metrics
(`web/request_metrics.py`) are each process's own: scrape all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from starlette.datastructures import State

from service.jobs.model.states import TERMINAL, JobState
from service.jobs.store.queue_health import (
    WARNINGS,
    JobCount,
    PoolReport,
    failure_codes,
    job_counts,
    oldest_seconds,
    overdue_leases,
    pool_reports,
)
from service.platform.db import Database
from service.web.error_handlers import DATABASE_ERRORS

router = APIRouter(tags=["operations"])


@router.get("/metrics", response_class=Response)
async def read_metrics(request: Request) -> Response:
    """Prometheus text: jobs by state and pool, waiting times, failures, workers, requests, warnings."""
    state = request.app.state
    registry = CollectorRegistry()
    registry.register(_Families([*_of_process(state), *_of_jobs(await state.job_metrics.result())]))
    text = generate_latest(registry) + generate_latest(state.request_metrics.registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


@dataclass(frozen=True)
class Snapshot:
    """State of the queue at one moment."""

    counts: list[JobCount]
    oldest_seconds: dict[str, float]
    overdue: dict[str, int]
    codes: dict[str, int]
    pools: list[PoolReport]


class JobMetrics:
    """Reads snapshots. Failure codes are read again only if the number of failed jobs has changed."""

    def __init__(self, database: Database, sweep_seconds: float) -> None:
        self._database = database
        self._sweep_seconds = sweep_seconds
        self._codes: dict[str, int] = {}

    def read(self) -> Snapshot | None:
        """None if the database does not respond."""
        try:
            with self._database.reading() as session:
                found = job_counts(session)
                num_failed = sum(each.num_jobs for each in found if each.state == JobState.FAILED)
                if num_failed != sum(self._codes.values()):
                    self._codes = failure_codes(session)
                pools = pool_reports(session, self._sweep_seconds)
                return Snapshot(found, oldest_seconds(session), overdue_leases(session), self._codes, pools)
        except DATABASE_ERRORS:
            return None


class _Families(Collector):
    """Metric families as a collector for `prometheus_client`."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _of_process(state: State) -> Iterator[Metric]:
    build = GaugeMetricFamily("grpo_build_info", "This build.", labels=["version"])
    build.add_metric([version("grpo-service")], 1)
    yield build
    feed = getattr(state, "feed", None)  # created with the first stream
    num_watchers = feed.num_subscribers if feed else 0
    yield GaugeMetricFamily("grpo_sse_clients", "Open streams of this process.", value=num_watchers)


def _of_jobs(found: Snapshot | None) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "grpo_database_up", "Whether the database responds.", value=float(found is not None)
    )
    if found is None:
        return
    yield _family("grpo_jobs", "Jobs by state and pool.", ("state", "pool"), _by_state(found.counts))
    waits, overdue = found.oldest_seconds, found.overdue
    yield _family("grpo_oldest_queued_seconds", "Age of the oldest waiting job.", ("pool",), waits)
    yield _family("grpo_leases_overdue", "Expired leases, not requeued yet.", ("pool",), overdue)
    yield from _of_outcomes(found)
    yield from _of_workers(found.pools)


def _of_outcomes(found: Snapshot) -> Iterator[Metric]:
    finished = {
        (each.state, each.pool): each.num_jobs for each in found.counts if JobState(each.state) in TERMINAL
    }
    yield _counter("grpo_jobs_finished", "Jobs that ended, by result.", ("result", "pool"), finished)
    yield _counter("grpo_jobs_failed", "Failed jobs by code.", ("code",), found.codes)
    attempts: dict[str, int] = {}
    expired: dict[str, int] = {}
    for each in found.counts:
        attempts[each.pool] = attempts.get(each.pool, 0) + each.num_attempts
        expired[each.pool] = expired.get(each.pool, 0) + each.num_expired_leases
    yield _counter("grpo_attempts", "Claims of jobs by workers.", ("pool",), attempts)
    yield _counter("grpo_leases_expired", "Expired leases that were requeued.", ("pool",), expired)


def _of_workers(pools: list[PoolReport]) -> Iterator[Metric]:
    live = {each.pool: each.num_live for each in pools}
    yield _family("grpo_worker_hosts", "Machines with a live worker.", ("pool",), live)
    seen = {each.pool: min(host.silent_seconds for host in each.hosts) for each in pools if each.hosts}
    yield _family(
        "grpo_worker_seen_seconds", "Seconds since a worker's machine was last seen.", ("pool",), seen
    )
    warnings = {
        (each.pool, name): float(name in each.warnings) for each in pools for name in sorted(WARNINGS)
    }
    yield _family("grpo_warning", "1 if the warning is active.", ("pool", "warning"), warnings)


def _by_state(found: list[JobCount]) -> dict[tuple[str, ...], float]:
    return {(each.state, each.pool): each.num_jobs for each in found}


def _family(name: str, text: str, labels: tuple[str, ...], values: Mapping[Any, float]) -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=labels), values)


def _counter(name: str, text: str, labels: tuple[str, ...], values: Mapping[Any, float]) -> Metric:
    return _filled(CounterMetricFamily(name, text, labels=labels), values)


def _filled(family: Any, values: Mapping[Any, float]) -> Metric:
    for key, value in values.items():
        family.add_metric([key] if isinstance(key, str) else list(key), value)
    filled: Metric = family
    return filled
