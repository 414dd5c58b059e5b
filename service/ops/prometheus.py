"""`/metrics` for Prometheus. It needs no API key, so it names no tenant, job or key.

Job metrics are read from the database at each scrape, so all API processes return the same values. Request
metrics (`web/request_metrics.py`) are different in each process: scrape all of them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from sqlalchemy.exc import ProgrammingError
from starlette.datastructures import State

from service.jobs.diagnosis.failures import CODES
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
from service.platform.db import OUTAGES, Database

router = APIRouter(tags=["operations"])


@router.get("/metrics", response_class=Response)
async def read_metrics(request: Request) -> Response:
    """Prometheus text: jobs by state and pool, waiting times, failures, workers, requests, warnings."""
    state = request.app.state
    jobs = await state.job_metrics.result()
    up = GaugeMetricFamily("grpo_database_up", "Whether the database responds.", value=float(bool(jobs)))
    families = _Families([*_of_process(state), up, *jobs])
    text = generate_latest(families) + generate_latest(state.request_metrics.registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


class JobMetrics:
    """Reads the queue. Failure codes are read again only if the number of failed jobs has changed."""

    def __init__(self, database: Database, sweep_seconds: float) -> None:
        self._database = database
        self._sweep_seconds = sweep_seconds
        self._codes: dict[str, int] = {}

    def read(self) -> list[Metric]:
        """The metrics of the queue; none if the database does not respond or refuses."""
        try:
            with self._database.reading() as session:
                found = job_counts(session)
                num_failed = sum(each.num_jobs for each in found if each.state == JobState.FAILED)
                if num_failed != sum(self._codes.values()):
                    self._codes = failure_codes(session)
                pools = pool_reports(session, self._sweep_seconds)
                waits, overdue = oldest_seconds(session), overdue_leases(session)
        except (*OUTAGES, ProgrammingError):
            return []
        return [*_of_jobs(found, waits, overdue, self._codes), *_of_pools(pools)]


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
    num_streams = state.job_feed.num_subscribers
    yield GaugeMetricFamily("grpo_sse_clients", "Open streams of this process.", value=num_streams)


def _of_jobs(
    counts: list[JobCount], waits: dict[str, float], overdue: dict[str, int], codes: dict[str, int]
) -> Iterator[Metric]:
    by_state = {(each.state, each.pool): each.num_jobs for each in counts}
    yield _gauge("grpo_jobs", "Jobs by state and pool.", ("state", "pool"), by_state)
    yield _gauge("grpo_oldest_queued_seconds", "Age of the oldest waiting job.", ("pool",), waits)
    yield _gauge("grpo_leases_overdue", "Expired leases, not requeued yet.", ("pool",), overdue)
    finished = {key: num for key, num in by_state.items() if JobState(key[0]) in TERMINAL}
    yield _counter("grpo_jobs_finished", "Jobs that ended, by result.", ("result", "pool"), finished)
    # from 0, so that the first failure is a change, too
    failed = dict.fromkeys(CODES, 0) | codes
    yield _counter("grpo_jobs_failed", "Failed jobs by code.", ("code",), failed)
    attempts, expired = Counter[str](), Counter[str]()
    for each in counts:
        attempts[each.pool] += each.num_attempts
        expired[each.pool] += each.num_expired_leases
    yield _counter("grpo_attempts", "Claims of jobs by workers.", ("pool",), attempts)
    yield _counter("grpo_leases_expired", "Expired leases that were requeued.", ("pool",), expired)


def _of_pools(pools: list[PoolReport]) -> Iterator[Metric]:
    live = {pool.pool: pool.num_live for pool in pools}
    yield _gauge("grpo_worker_hosts", "Machines with a live worker.", ("pool",), live)
    seen = {pool.pool: min(host.silent_seconds for host in pool.hosts) for pool in pools if pool.hosts}
    text = "Seconds since a worker's machine was last seen."
    yield _gauge("grpo_worker_seen_seconds", text, ("pool",), seen)
    active = {(pool.pool, name): float(name in pool.warnings) for pool in pools for name in sorted(WARNINGS)}
    yield _gauge("grpo_warning", "1 if the warning is active.", ("pool", "warning"), active)


def _gauge(name: str, text: str, labels: tuple[str, ...], values: Mapping[Any, float]) -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=labels), values)


def _counter(name: str, text: str, labels: tuple[str, ...], values: Mapping[Any, float]) -> Metric:
    return _filled(CounterMetricFamily(name, text, labels=labels), values)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[Any, float]) -> Metric:
    for key, value in values.items():
        family.add_metric([key] if isinstance(key, str) else list(key), value)
    return family
