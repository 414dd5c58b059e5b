"""Liveness and readiness. They need no API key, so their answers contain nothing confidential.

Both answer in time even if a dependency hangs: neither needs a pool thread, and each check has a time limit.
"""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from sqlalchemy.exc import ProgrammingError, SQLAlchemyError

from service.jobs.store.wakeups import broker_check
from service.ops import helper_heartbeats
from service.ops.bounded_check import BoundedCheck
from service.ops.database_rights import missing_rights
from service.platform.catalog import Catalog, CatalogError
from service.platform.db import OUTAGES, Database, refusal_of
from service.platform.migrate import current_revision, head_revision, is_known
from service.platform.storage import Storage, StorageError
from service.settings import Settings

router = APIRouter(tags=["operations"])

NO_ANSWER = "no answer"
OK = ("ok", "none")
NEEDED = ("database", "disk")
"""The service is not ready if one of these checks fails; a failure of another only degrades it."""


@router.get("/livez")
async def check_liveness() -> dict[str, str]:
    """The process responds; nothing else is checked."""
    return {"status": "alive"}


@router.get("/readyz")
async def check_readiness(request: Request) -> JSONResponse:
    """503 without the database, with another schema or a full disk; otherwise at worst `degraded`."""
    checks = await request.app.state.readiness.results()
    if any(checks[name] not in OK for name in NEEDED):
        return JSONResponse({"status": "unready", "checks": checks}, status_code=503)
    is_whole = all(found in OK for found in checks.values())
    return JSONResponse({"status": "ready" if is_whole else "degraded", "checks": checks})


class Readiness:
    """The checks, each with its own thread and time limit."""

    def __init__(self, database: Database, settings: Settings, storage: Storage) -> None:
        checks: dict[str, Callable[[], str]] = {
            "database": lambda: database_check(database),
            "broker": lambda: broker_check(settings),
            "storage": lambda: storage_check(storage, settings),
            "disk": lambda: disk_check(settings),
            "models": lambda: models_check(settings),
            "helpers": lambda: helpers_check(database, settings),
        }
        self._checks = {name: BoundedCheck(check, NO_ANSWER) for name, check in checks.items()}

    async def results(self) -> dict[str, str]:
        """Name → `ok`, `none` or the problem; all checks run concurrently."""
        found = await asyncio.gather(*(check.result() for check in self._checks.values()))
        return dict(zip(self._checks, found, strict=True))


def database_check(database: Database) -> str:
    """Whether the database responds, has this code's schema, and lets its user read and change it."""
    try:
        found, needed = current_revision(database.engine), head_revision()
        if found != needed:
            advice = "run `grpo migrate`" if is_known(found) else "another version upgraded it"
            return f"schema is {found}, {needed} is needed: {advice}"
        with database.reading() as session:
            missing = missing_rights(session)
    except OUTAGES:
        return NO_ANSWER
    except ProgrammingError as error:
        return f"refuses to be read: {refusal_of(error) or type(error).__name__}"
    shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    return f"its user lacks {shown}" if missing else "ok"


def storage_check(storage: Storage, settings: Settings) -> str:
    """Whether the storage responds and, if it is a folder, has enough free space."""
    try:
        storage.check()
    except StorageError:
        return NO_ANSWER
    folder = settings.storage_folder
    return "ok" if folder is None else disk_check(settings, folder)


def models_check(settings: Settings) -> str:
    """Whether the model catalogue can be read; its path is not public."""
    try:
        names = Catalog(settings).names()
    except CatalogError:
        return "the catalogue cannot be read: run `grpo doctor`"
    return "ok" if names else "none"


def helpers_check(database: Database, settings: Settings) -> str:
    """Names each worker helper that completed no round lately; hosts are not public."""
    try:
        with database.reading() as session:
            seen = helper_heartbeats.helpers_seen(session, settings.sweep_seconds)
    except SQLAlchemyError:
        return NO_ANSWER
    silent = [f"{each.helper} not seen for {each.silent_seconds:.0f} s" for each in seen if each.is_silent]
    return ", ".join(silent) or ("ok" if seen else "none")


def disk_check(settings: Settings, folder: Path | None = None) -> str:
    """Whether a folder has enough free space; by default the home, for uploads and temporary files."""
    free_bytes = shutil.disk_usage(folder or settings.home).free
    if free_bytes >= settings.min_free_disk_bytes:
        return "ok"
    return f"{free_bytes >> 20} MiB are free, {settings.min_free_disk_bytes >> 20} MiB are required"
