"""The database, the broker, the storage and the disk."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service.jobs.store import formats
from service.jobs.store.machines import as_text
from service.jobs.store.queue_health import (
    IDLE_WORKER,
    NO_LIVE_WORKER,
    UNRUNNABLE_JOBS,
    WARNINGS,
    PoolReport,
    pool_reports,
)
from service.jobs.store.wakeups import BROKER_REFUSES, broker_check
from service.ops.doctor.findings import Finding, failure, ok, warning
from service.ops.health import NO_ANSWER, database_check, disk_check
from service.ops.helper_heartbeats import GPU, helpers_seen
from service.platform.clock import read_clock
from service.platform.db import Database, connect, is_postgresql
from service.platform.ids import new_id
from service.platform.migrate import head_revision
from service.platform.storage import StorageError, open_storage
from service.settings import Settings

PROBE = b"grpo doctor"
ADVICE = {
    NO_LIVE_WORKER: "Start a worker of this pool: `grpo worker` or `celery -A worker.app worker`.",
    IDLE_WORKER: "Restart the worker; see in its log why it claims no job.",
    UNRUNNABLE_JOBS: "Start a worker that offers it (bubblewrap, GRPO_GPUS, new code), or cancel the jobs.",
}
SERVER_ADVICE = (
    "Start the database that GRPO_DATABASE_URL names, or correct its host, name, user or password."
)
SCHEMA_ADVICE = (
    "Run `grpo migrate` with this version's code, or a newer version if that upgraded the database. For a "
    "missing right, let the tables' owner grant it to the user that GRPO_DATABASE_URL names."
)
FILE_ADVICE = "GRPO_HOME must be a folder that this user can write to, and its disk must not be full."


def database(settings: Settings) -> Iterator[Finding]:
    """Whether the database is reachable, durable and has this code's schema; its clock, pools and helpers."""
    opened = connect(settings)
    try:
        with opened.reading() as session:
            yield ok("database", _version(session))
            yield from _durability(session)
            yield _clock(session)
        yield from _schema_and_pools(opened, settings)
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error)
        is_file = opened.engine.name == "sqlite"
        yield failure("database", reason, FILE_ADVICE if is_file else SERVER_ADVICE)
    finally:
        opened.engine.dispose()


def _version(session: Session) -> str:
    if is_postgresql(session):
        return f"PostgreSQL {session.scalar(text('SHOW server_version'))}"
    return f"SQLite {session.scalar(text('SELECT sqlite_version()'))}"


def _durability(session: Session) -> Iterator[Finding]:
    if not is_postgresql(session):
        return
    found = {name: session.scalar(text(f"SHOW {name}")) for name in ("synchronous_commit", "fsync")}
    shown = ", ".join(f"{name} is {value}" for name, value in found.items())
    off = [name for name, value in found.items() if value == "off"]
    if off:
        advice = f"ALTER SYSTEM SET {off[0]} = on: a crash may lose accepted jobs."
        yield failure("durability", shown, advice)
    else:
        yield ok("durability", shown)


def _clock(session: Session) -> Finding:
    """The clocks' difference, for information only: leases depend on the database's clock alone."""
    ahead = read_clock(session) - time.time()
    return ok(
        "clock", f"the database is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this machine"
    )


def _schema_and_pools(opened: Database, settings: Settings) -> Iterator[Finding]:
    schema = database_check(opened)
    if schema != "ok":
        yield failure("schema", schema, SCHEMA_ADVICE)
        return
    yield ok("schema", head_revision())
    with opened.reading() as session:
        for report in pool_reports(session, settings.sweep_seconds):
            for name in report.warnings:
                yield warning(f"pool {report.pool}", WARNINGS[name], ADVICE[name])
            if not report.warnings:
                num_waiting = sum(need.num_jobs for need in report.needs)
                found = f"machines: {report.num_live}, running: {report.num_held}, waiting: {num_waiting}"
                yield ok(f"pool {report.pool}", found)
            yield from _old_workers(report)
        yield from _helpers(session, settings)


def _old_workers(report: PoolReport) -> Iterator[Finding]:
    """Each machine whose workers cannot read all jobs that this version creates."""
    for host in report.hosts:
        number = formats.number_of(as_text(host.machine.capabilities))
        if host.is_live and number < formats.NEWEST:
            found = f"{host.name} reads job format {number}; this version writes up to {formats.NEWEST}"
            advice = "Upgrade the worker there. Until then it leaves newer jobs to others."
            yield warning(f"pool {report.pool}", found, advice)


def _helpers(session: Session, settings: Settings) -> Iterator[Finding]:
    """Each helper of a worker that has stopped; no finding if there is no worker."""
    seen = helpers_seen(session, settings.sweep_seconds)
    for each in seen:
        if each.is_silent:
            place = f"{each.helper} on {each.host} (pool {each.pool})"
            advice = "See `helper ended` in that worker's log. If the worker has stopped, start it again."
            if each.helper == GPU:
                advice = "That worker claims no job: see `a GPU fails` in its log, and `nvidia-smi` there."
            yield warning("helpers", f"{place} not seen for {each.silent_seconds:.0f} s", advice)
    if seen and not any(each.is_silent for each in seen):
        yield ok("helpers", ", ".join(sorted({each.helper for each in seen})))


def broker(settings: Settings) -> Iterator[Finding]:
    """Whether the broker responds, accepts messages and evicts nothing. It need not write to disk."""
    found = broker_check(settings)
    if found in ("ok", "none"):
        yield ok("broker", "none: workers poll" if found == "none" else "responds and evicts nothing")
        return
    advice = "Name the primary in GRPO_BROKER_URL, or raise maxmemory. Celery workers are not woken."
    if found == NO_ANSWER:
        advice = "Start the Redis server of GRPO_BROKER_URL. Until then, Celery workers are not woken."
    elif found == BROKER_REFUSES:
        advice = "Correct them in GRPO_BROKER_URL: redis://USER:PASSWORD@HOST:PORT/NUMBER."
    elif found.startswith("evicts"):
        advice = "CONFIG SET maxmemory-policy noeviction, also in its configuration file."
    yield failure("broker", found, advice)


def storage(settings: Settings) -> Iterator[Finding]:
    """Whether the storage can write, read and delete an object."""
    key = f"probe/{new_id('doctor')}"
    try:
        store = open_storage(settings.storage_location)
        store.put(key, PROBE)
        is_same = store.get_bytes(key) == PROBE
        store.delete(key)
    except (StorageError, OSError, ValueError) as error:
        advice = "GRPO_STORAGE_URL names a folder or bucket that this user may write to; AWS_… are its keys."
        yield failure("storage", str(error), advice)
        return
    if is_same:
        yield ok("storage", f"{settings.storage_location}: an object was written, read and deleted")
    else:
        yield failure("storage", "an object came back changed", "Check the proxies in front of the storage.")


def disk(settings: Settings) -> Iterator[Finding]:
    """Free space in the home, and in the run directories and the storage if they are on other disks."""
    yield _room("disk", settings.home, settings)
    others = {"disk of runs": settings.runs_dir, "disk of storage": settings.storage_folder}
    for name, folder in others.items():
        if folder and folder.is_dir() and folder.stat().st_dev != settings.home.stat().st_dev:
            yield _room(name, folder, settings)


def _room(name: str, folder: Path, settings: Settings) -> Finding:
    found = disk_check(settings, folder)
    if found != "ok":
        return failure(name, f"{folder}: {found}", "Free some space, or lower GRPO_MIN_FREE_DISK_BYTES.")
    usage = shutil.disk_usage(folder)
    return ok(name, f"{folder}: {usage.free / 2**30:.1f} of {usage.total / 2**30:.1f} GiB are free")
