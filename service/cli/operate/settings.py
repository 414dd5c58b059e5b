"""The service's processes one by one: `grpo serve`, `grpo worker`, `grpo migrate`."""

from __future__ import annotations

import os
import re
import sys
from typing import Annotated

import typer
from pydantic import ValidationError
from pydantic_settings import SettingsError

from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import JsonFlag, console, print_json
from service.settings import Settings

STREAM_GRACE_SECONDS = 5
"""Open streams are cut so long after SIGTERM; their clients come back with Last-Event-ID."""


def settings_here() -> Settings:
    """This deployment's settings. Raises CommandError for a value that cannot be."""
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors()[0]
        name, *inside = first["loc"] or (None,)
        place = "".join(f"{part}: " for part in inside)
        variable = None if name is None else f"GRPO_{name}".upper()
        raise CommandError(place + first["msg"].removeprefix("Value error, "), param=variable) from error
    except SettingsError as error:  # it names the field, and shows no value
        found = re.search(r'field "(\w+)"', str(error))
        variable = f"GRPO_{found[1]}".upper() if found else None
        raise CommandError("it is not JSON", param=variable) from None


def keep_private() -> None:
    """What this process and its children write from here on, only its user reads."""
    os.umask(0o077)


def api_command(host: str, port: int) -> list[str]:
    """The API process."""
    return [
        *(sys.executable, "-m", "uvicorn", "service.app:create_app", "--factory"),
        *("--host", host, "--port", str(port)),
        # Strict, and bounded in headers; where httptools is installed uvicorn would take it.
        *("--http", "h11"),
        *("--timeout-graceful-shutdown", str(STREAM_GRACE_SECONDS), "--no-access-log"),
    ]


def worker_command(pool: str) -> list[str]:
    """A worker process that polls; the service never imports it."""
    return [sys.executable, "-m", "worker", "--pool", pool]


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8000,
) -> None:
    """Start the API alone."""
    keep_private()
    settings_here()
    _become(api_command(host, port))


def worker(
    pool: Annotated[str, typer.Option(help="Jobs of this pool.", envvar="GRPO_POOL")] = "default",
) -> None:
    """Start a worker that polls for jobs (with Celery: `celery -A worker.app worker`)."""
    keep_private()
    settings_here()
    _become(worker_command(pool))


def migrate(as_json: JsonFlag = False) -> None:
    """Bring the database's schema up to date."""
    keep_private()
    revision = migrate_database(settings_here())
    if as_json:
        print_json({"revision": revision})
    else:
        console.print(f"The schema is at {revision}.")


def migrate_database(settings: Settings) -> str | None:
    """Upgrades to the newest revision and returns its name."""
    from service.platform.migrate import head_revision, upgrade

    upgrade(settings)
    return head_revision()


def _become(command: list[str]) -> None:
    sys.stdout.flush()
    # this process becomes the server: signals and exit code are its own
    os.execv(command[0], command)  # noqa: S606
