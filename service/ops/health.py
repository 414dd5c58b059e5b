"""Is it alive, is it ready. No key is needed, so only neutral words are told.

Both answer in time whatever hangs: liveness asks nothing and needs no thread, readiness asks through probes.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from service.jobs.store.wakeups import broker_check
from service.ops.bounded_check import Probe
from service.platform.db import Database
from service.platform.migrate import current_revision, head_revision
from service.platform.storage import Storage, StorageError
from service.settings import Settings
from service.web.error_handlers import DATABASE_ERRORS

router = APIRouter(tags=["operations"])

NO_ANSWER = "no answer"
OK = ("ok", "none")
NEEDED = ("database", "disk")
"""Without these it does not serve. Without the others it does: jobs are seen and cancelled."""


@router.get("/livez")
async def live() -> dict[str, str]:
    """The process answers; nothing else is asked."""
    return {"status": "alive"}


@router.get("/readyz")
async def ready(request: Request) -> JSONResponse:
    """503 without database, on another schema or a full disk. Without broker or storage only degraded."""
    checks = await request.app.state.readiness.ask()
    if any(checks[name] not in OK for name in NEEDED):
        return JSONResponse({"status": "unready", "checks": checks}, status_code=503)
    is_whole = all(found in OK for found in checks.values())
    return JSONResponse({"status": "ready" if is_whole else "degraded", "checks": checks})


class Readiness:
    """The checks, each with a thread and a time of its own."""

    def __init__(self, database: Database, settings: Settings, storage: Storage) -> None:
        checks: dict[str, Callable[[], str]] = {
            "database": lambda: database_check(database),
            "broker": lambda: broker_check(settings),
            "storage": lambda: storage_check(storage),
            "disk": lambda: disk_check(settings),
        }
        self._probes = {name: Probe(check, NO_ANSWER) for name, check in checks.items()}

    async def ask(self) -> dict[str, str]:
        """Name → `ok`, `none` or what is wrong; all at the same time."""
        found = await asyncio.gather(*(probe.ask() for probe in self._probes.values()))
        return dict(zip(self._probes, found, strict=True))


def database_check(database: Database) -> str:
    """Whether it answers, and has this code's schema."""
    try:
        found = current_revision(database.engine)
    except DATABASE_ERRORS:
        return NO_ANSWER
    needed = head_revision()
    return "ok" if found == needed else f"schema is {found}, {needed} is needed: run `grpo migrate`"


def storage_check(storage: Storage) -> str:
    """Whether it answers a question that costs nothing."""
    try:
        storage.check()
    except StorageError:
        return NO_ANSWER
    return "ok"


def disk_check(settings: Settings, folder: Path | None = None) -> str:
    """Whether there is room in a folder; in the home, where uploads and scratch go."""
    free_bytes = shutil.disk_usage(folder or settings.home).free
    if free_bytes >= settings.min_free_disk_bytes:
        return "ok"
    return f"{free_bytes >> 20} MiB are free, {settings.min_free_disk_bytes >> 20} MiB are wanted"
