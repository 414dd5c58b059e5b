"""Options and arguments that several commands share, with their completion in a shell."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from service.cli.http.client import JOBS, Client, direct
from service.cli.operate.settings import settings_here
from service.cli.terminal.errors import CommandError

COMPLETION_SECONDS = 1.5
_ID = re.compile(r"[A-Za-z0-9_-]+")
_UNSAFE = re.compile(r"[^\w .,:/@+-]")
"""Characters that a shell may interpret: zsh evaluates completions twice."""
COMPLETED_ITEMS = 100
"""The newest items are offered, at most one page of the list."""


def client_of(context: typer.Context) -> Client:
    """A client for this command, closed at its end. Raises CommandError."""
    return context.with_resource(Client(*_connection(context)))


def _connection(context: typer.Context) -> tuple[str, str | None]:
    """The URL, and the key: by default the one that `grpo up` wrote."""
    given = context.find_root().params
    return given["url"], given["api_key"] or _first_key()


def _first_key() -> str | None:
    path = settings_here().key_file
    try:
        return path.read_text(encoding="ascii").strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read the key in {path}: {error}") from error


def quick_answer(context: typer.Context, path: str) -> httpx.Response:
    """A list's first page, without a retry. Raises CommandError, httpx.HTTPError, httpx.InvalidURL."""
    url, key = _connection(context)
    headers, params = {"Authorization": f"Bearer {key}"}, {"limit": COMPLETED_ITEMS}
    with httpx.Client(transport=direct(url), timeout=COMPLETION_SECONDS) as client:
        return client.get(url.rstrip("/") + path, params=params, headers=headers)


def _completion(
    path: str, describe: Callable[[dict[str, Any]], str]
) -> Callable[[typer.Context, str], list[tuple[str, str]]]:
    """Completes the ids of a list, with a description of each; completes nothing on any failure.

    What other people wrote, such as names of files, cannot run as a command in the shell.
    """

    def complete(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        try:
            answer = quick_answer(context, path)
            found = [(one["id"], describe(one)) for one in answer.raise_for_status().json()["data"]]
        except (CommandError, httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
            return []
        return [
            (name, _UNSAFE.sub("_", about))
            for name, about in found
            if name.startswith(incomplete) and not _UNSAFE.search(name)
        ]

    return complete


def checked_id(value: str) -> str:
    """The id. Raises BadParameter for text that would become another path of the API."""
    if not _ID.fullmatch(value):
        raise typer.BadParameter(f"{value!r} is not an id, such as ftjob-… in `grpo list`")
    return value


complete_jobs = _completion(JOBS, lambda job: f"{job['status']} {job['model']}")
complete_files = _completion("/v1/files", lambda file: str(file["filename"]))
complete_models = _completion("/v1/models", lambda model: str(model["owned_by"]))

JobId = Annotated[str, typer.Argument(metavar="JOB", autocompletion=complete_jobs, callback=checked_id)]
JobFile = Annotated[Path, typer.Argument(metavar="JOB.json", exists=True, dir_okay=False)]
Checkpoint = Annotated[str | None, typer.Option(help="best, or a checkpoint's id, instead of the final one.")]
Watch = Annotated[bool, typer.Option("--watch", help="Watch it to the end.")]
