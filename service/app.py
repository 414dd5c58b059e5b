"""The application: routers, lifespan, state. Started by `python -m service`.

Boundary: wiring only. It runs no migrations; if the database has another schema, the service stays unready.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import structlog
from anyio import CapacityLimiter
from fastapi import Depends, FastAPI

from service.dashboard import routes as dashboard
from service.files import endpoints as files
from service.graders import endpoints as graders
from service.jobs.api import endpoints as jobs
from service.jobs.api import endpoints_exports as exports
from service.jobs.api import endpoints_suites as suites
from service.jobs.intake.checks.files import CheckedRows
from service.jobs.intake.costs import PastRun
from service.jobs.intake.recent_results import RecentResults
from service.jobs.progress.stream import JobFeed
from service.jobs.store.wakeups import Wakeups, refuse_eviction
from service.keys import endpoints as keys
from service.models_catalog import endpoints as models
from service.ops import health, prometheus
from service.ops.bounded_check import BoundedCheck
from service.platform import logs
from service.platform.catalog import Catalog
from service.platform.db import connect
from service.platform.feed import stop_on_signals
from service.platform.storage import open_usable_storage
from service.probes import endpoints as probing
from service.rollouts import endpoints as rollouts
from service.serving import endpoints as chat
from service.serving.answer import AnswerFeed, open_client
from service.settings import Settings, settings_or_exit
from service.web import error_handlers, openapi, swagger
from service.web.auth import usable_keys
from service.web.key_use import KeyUse
from service.web.limits import ConcurrencyLimit, RequestRate
from service.web.middleware import BodyTimeLimit, HeadRequests, RequestContext
from service.web.per_key_concurrency import (
    REQUESTS_PER_KEY,
    UPLOADS,
    UPLOADS_PER_KEY,
    PerKeyConcurrency,
    limit_requests_of_key,
)
from service.web.request_metrics import RequestMetrics
from service.web.strict_json import require_strict_json
from service.webhooks import endpoints as webhooks

MAX_BODY_BYTES = 2**20
FORM_BYTES = 2**16
"""Size of a multipart form without the file in it."""


class Service(FastAPI):
    """FastAPI with the completed document at `/openapi.json`."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = openapi.completed(super().openapi())
        return self.openapi_schema


def create_app(settings: Settings | None = None) -> FastAPI:
    """Build the service, by default with settings from the environment."""
    settings = settings or settings_or_exit()
    logs.configure(settings.log_level)
    app = Service(
        title="GRPO service",
        version=version("grpo-service"),
        description="GRPO fine-tuning of language models as jobs, in OpenAI's fine-tuning API. "
        "HEAD is answered wherever GET is.",
        lifespan=_lifespan,
        dependencies=[Depends(require_strict_json), Depends(limit_requests_of_key, scope="function")],
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    app.state.settings = settings
    # the last one added is the outermost
    app.add_middleware(HeadRequests)
    app.add_middleware(BodyTimeLimit)
    app.add_middleware(RequestContext)
    _include_routers(app, settings.max_upload_bytes)
    error_handlers.install(app)
    swagger.install(app)
    dashboard.install(app)
    return app


def _include_routers(app: FastAPI, max_upload_bytes: int) -> None:
    # per router, because a limit of the application itself would respond before the middleware runs
    app.include_router(files.uploads, max_body_size=max_upload_bytes + FORM_BYTES)
    training = (files, jobs, exports, probing, rollouts, models, graders, suites)
    for room in (*training, webhooks, keys, chat, health, prometheus):
        app.include_router(room.router, max_body_size=MAX_BODY_BYTES)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    settings: Settings = app.state.settings
    # again, because the server may have configured its own logging after create_app
    logs.configure(settings.log_level)
    refuse_eviction(settings)
    app.state.database = connect(settings)
    app.state.storage = open_usable_storage(settings.storage_location)
    app.state.catalog = Catalog(settings)
    app.state.upload_threads = CapacityLimiter(UPLOADS)
    app.state.checked_files = RecentResults[CheckedRows](seconds=600.0, max_entries=256)
    app.state.past_jobs = RecentResults[list[PastRun]](seconds=60.0, max_entries=1024)
    app.state.wakeups = Wakeups(settings)
    app.state.request_rate = RequestRate(settings.max_requests_per_second)
    app.state.key_use = KeyUse(app.state.database)
    app.state.request_metrics = RequestMetrics()
    app.state.requests_per_key = PerKeyConcurrency(REQUESTS_PER_KEY)
    app.state.uploads_per_key = PerKeyConcurrency(UPLOADS_PER_KEY)
    app.state.job_feed = JobFeed(app.state.database)
    app.state.chat_feed = AnswerFeed(app.state.database, usable_keys)
    for feed in (app.state.job_feed, app.state.chat_feed):
        stop_on_signals(feed)
    app.state.stream_limit = ConcurrencyLimit(
        "open streams", settings.max_streams, code="too_many_streams", retry_seconds=30
    )
    app.state.chat_limit = ConcurrencyLimit("chat requests", settings.max_chats)
    app.state.server_limit = ConcurrencyLimit(
        "requests that wait for other servers", per_tenant=16, overall=32
    )
    app.state.model_servers = open_client()
    app.state.readiness = health.Readiness(app.state.database, settings, app.state.storage)
    job_metrics = prometheus.JobMetrics(app.state.database, settings.sweep_seconds)
    app.state.job_metrics = BoundedCheck(job_metrics.read, [])
    structlog.get_logger().info("started", mode=settings.mode)
    if settings.allows_unsafe:
        structlog.get_logger().warning("UNSAFE: untrusted code may run without a sandbox, for one tenant")
    yield
    for feed in (app.state.job_feed, app.state.chat_feed):
        await feed.close()
    await app.state.model_servers.aclose()
    app.state.wakeups.close()
    app.state.key_use.close()
    app.state.database.engine.dispose()
    structlog.get_logger().info("stopped")
