"""`/metrics`: what Prometheus asks. No key is needed, so no tenant, job or key is in it.

What concerns jobs comes from the database at each scrape, so that every API process says the same. What this
process has answered it has counted itself (`web/request_metrics.py`): of several processes each is scraped.
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
from starlette.datastructures import State

from service.jobs.model.states import TERMINAL, JobState
from service.jobs.store.counting import Count, counts, failure_codes, oldest_seconds, overdue_leases
from service.jobs.store.pools import WARNINGS, PoolReport, pool_reports
from service.platform.db import Database
from service.web.error_handlers import DATABASE_ERRORS

router = APIRouter(tags=["operations"])


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Prometheus text: jobs by state and pool, their waits and failures, workers seen, requests, warnings."""
    state = request.app.state
    registry = CollectorRegistry()
    registry.register(_Families([*_of_process(state), *_of_jobs(await state.census.ask())]))  # type: ignore[arg-type]
    text = generate_latest(registry) + generate_latest(state.request_metrics.registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


@dataclass(frozen=True)
class Seen:
    """What the database says at one moment."""

    counts: list[Count]
    oldest_seconds: dict[str, float]
    overdue: dict[str, int]
    codes: dict[str, int]
    pools: list[PoolReport]


class Census:
    """Asks the database. Failed jobs are read again only when there are more of them: they never change."""

    def __init__(self, database: Database, sweep_seconds: float) -> None:
        self._database = database
        self._sweep_seconds = sweep_seconds
        self._codes: dict[str, int] = {}

    def take(self) -> Seen | None:
        """None where the database does not answer."""
        try:
            with self._database.reading() as session:
                found = counts(session)
                num_failed = sum(each.num_jobs for each in found if each.state == JobState.FAILED)
                if num_failed != sum(self._codes.values()):
                    self._codes = failure_codes(session)
                pools = pool_reports(session, self._sweep_seconds)
                return Seen(found, oldest_seconds(session), overdue_leases(session), self._codes, pools)
        except DATABASE_ERRORS:
            return None


class _Families:
    """Families as a collector of `prometheus_client`."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _of_process(state: State) -> Iterator[Metric]:
    build = GaugeMetricFamily("grpo_build_info", "This build.", labels=["version"])
    build.add_metric([version("grpo-service")], 1)
    yield build
    feed = getattr(state, "feed", None)  # made with the first stream
    num_watchers = feed.num_watchers if feed else 0
    yield GaugeMetricFamily("grpo_sse_clients", "Open streams of this process.", value=num_watchers)


def _of_jobs(seen: Seen | None) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "grpo_database_up", "Whether the database answers.", value=float(seen is not None)
    )
    if seen is None:
        return
    yield _family("grpo_jobs", "Jobs by state and pool.", ("state", "pool"), _by_state(seen.counts))
    waits = seen.oldest_seconds
    yield _family("grpo_oldest_queued_seconds", "Age of the oldest waiting job.", ("pool",), waits)
    yield _family("grpo_leases_overdue", "Expired leases that no sweeper took back.", ("pool",), seen.overdue)
    yield from _of_outcomes(seen)
    yield from _of_workers(seen.pools)


def _of_outcomes(seen: Seen) -> Iterator[Metric]:
    finished = {
        (each.state, each.pool): each.num_jobs for each in seen.counts if JobState(each.state) in TERMINAL
    }
    yield _counter("grpo_jobs_finished", "Jobs that ended, by result.", ("result", "pool"), finished)
    yield _counter("grpo_jobs_failed", "Failed jobs by code.", ("code",), seen.codes)
    attempts: dict[str, int] = {}
    expired: dict[str, int] = {}
    for each in seen.counts:
        attempts[each.pool] = attempts.get(each.pool, 0) + each.num_attempts
        expired[each.pool] = expired.get(each.pool, 0) + each.num_expired_leases
    yield _counter("grpo_attempts", "Claims of jobs by workers.", ("pool",), attempts)
    yield _counter("grpo_leases_expired", "Leases of lost workers taken back.", ("pool",), expired)


def _of_workers(pools: list[PoolReport]) -> Iterator[Metric]:
    live = {each.pool: each.num_live for each in pools}
    yield _family("grpo_worker_hosts", "Machines with a worker that are there.", ("pool",), live)
    seen = {each.pool: min(host.silent_seconds for host in each.hosts) for each in pools if each.hosts}
    yield _family("grpo_worker_seen_seconds", "Since a worker's machine last spoke.", ("pool",), seen)
    warnings = {
        (each.pool, name): float(name in each.warnings) for each in pools for name in sorted(WARNINGS)
    }
    yield _family("grpo_warning", "1: somebody should look at it.", ("pool", "warning"), warnings)


def _by_state(found: list[Count]) -> dict[tuple[str, ...], float]:
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
