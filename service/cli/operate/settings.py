"""The deployment's settings and database, and `grpo serve`, `grpo worker` and `grpo migrate`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import JsonFlag, print_line
from service.settings import InvalidSetting, Settings, read_settings

if TYPE_CHECKING:
    from service.platform.db import Database


def settings_here() -> Settings:
    """This deployment's settings. Raises CommandError for an invalid value."""
    try:
        return read_settings()
    except InvalidSetting as error:
        raise CommandError(str(error), param=error.variable) from None
    except RuntimeError as error:  # neither HOME nor the list of users names a folder
        hint = "set it to a folder that this user can write to"
        raise CommandError("this user has no home directory", param="GRPO_HOME", hint=hint) from error


def private_settings() -> Settings:
    """`settings_here`; from now on only this user can read what this process and its children write."""
    os.umask(0o077)
    return settings_here()


@contextmanager
def explained_home(home: Path) -> Iterator[None]:
    """Raises CommandError for an error of the block, which creates the home or writes to it."""
    try:
        yield
    except OSError as error:
        hint = "use a folder that this user can write to"
        message = f"cannot write to {home}: {error.strerror}"
        raise CommandError(message, param="GRPO_HOME", hint=hint) from error


@contextmanager
def database_of(settings: Settings) -> Iterator[Database]:
    """The deployment's database. Raises CommandError for its errors."""
    # importing SQLAlchemy takes a quarter of a second, which HTTP commands save
    from sqlalchemy.exc import DBAPIError

    from service.platform.db import connect, is_disk_full

    with explained_home(settings.home):
        database = connect(settings)
    try:
        yield database
    except DBAPIError as error:
        reason = str(error.orig)
        hint = "free space on its disk" if is_disk_full(error) else None
        if re.search("no such (table|column)|(relation|column) .* does not exist", reason):
            hint = "`grpo migrate` brings its tables up to date"
        raise CommandError(f"the database refused: {reason}", hint=hint) from error
    finally:
        database.engine.dispose()


def api_command(host: str, port: int) -> list[str]:
    """The command line of the API process."""
    return [sys.executable, "-m", "service", "--host", host, "--port", str(port)]


def worker_command(pool: str) -> list[str]:
    """The command line of a polling worker. The service starts it as a process, because it must not import
    workers."""
    return [sys.executable, "-m", "worker", "--pool", pool]


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8000,
) -> None:
    """Start the API alone."""
    private_settings()
    _become(api_command(host, port))


def worker(
    pool: Annotated[str, typer.Option(help="Run the jobs of this pool.", envvar="GRPO_POOL")] = "default",
    slots: Annotated[
        int | None, typer.Option(help="Jobs to run at the same time (default: one per GPU, at least one).")
    ] = None,
) -> None:
    """Start a worker that polls for jobs (with Celery: `celery -A worker.app worker`)."""
    if slots is not None:
        os.environ["GRPO_SLOTS"] = str(slots)  # checked with the other settings, and read by the worker
    private_settings()
    _become(worker_command(pool))


def migrate(as_json: JsonFlag = False) -> None:
    """Bring the database's schema up to date."""
    revision = migrate_database(private_settings())
    print_line({"revision": revision}, f"The schema is at {revision}.", as_json=as_json)


def migrate_database(settings: Settings) -> str:
    """Upgrades to the newest revision; returns its name. Raises CommandError if the database refuses."""
    from alembic.util import CommandError as UnknownRevision
    from sqlalchemy.exc import DBAPIError

    from service.platform.migrate import head_revision, upgrade

    try:
        with explained_home(settings.home):
            upgrade(settings)
    except DBAPIError as error:
        raise CommandError(f"the database refused: {error.orig}", param="GRPO_DATABASE_URL") from error
    except UnknownRevision as error:
        hint = "start the version that upgraded it last, or set GRPO_DATABASE_URL to an empty database"
        raise CommandError(f"the database is of another version: {error}", hint=hint) from error
    return head_revision()


def _become(command: list[str]) -> None:
    sys.stdout.flush()
    # this process becomes the server, which receives its signals and sets its exit code
    os.execv(command[0], command)  # noqa: S606
