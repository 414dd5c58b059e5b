"""Where the service is and which key opens it: the options before the command, for all commands."""

from __future__ import annotations

from dataclasses import dataclass

import typer

from service.cli.http.client import Client
from service.cli.operate.settings import settings_here
from service.cli.terminal.errors import CommandError


@dataclass(frozen=True)
class Connection:
    """What `grpo --url … --api-key …` says."""

    url: str
    api_key: str | None


def client_of(context: typer.Context) -> Client:
    """A client for this command. Without a key given, the one that `grpo up` wrote."""
    connection: Connection = context.obj
    return Client(connection.url, key_of(connection))


def key_of(connection: Connection) -> str | None:
    """The key that was given, or the one that `grpo up` wrote. Raises CommandError."""
    return connection.api_key or _first_key()


def _first_key() -> str | None:
    path = settings_here().key_file
    try:
        return path.read_text(encoding="ascii").strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read the key in {path}: {error}") from error
