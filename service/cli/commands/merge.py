"""`grpo merge`: a job's base model with the adapter in its weights, in a folder that loads without PEFT.

Boundary: a worker merges; this command creates the export, waits for it and downloads it.
"""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from service.cli.commands.download import fetch, unpack
from service.cli.http import complete
from service.cli.http.client import JOBS, Client
from service.cli.options import client_of
from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import JsonFlag, plain, print_json, say, stderr

POLL_SECONDS = 0.5


def merge(
    context: typer.Context,
    job_id: Annotated[str, typer.Argument(metavar="JOB", autocompletion=complete.jobs)],
    to: Annotated[Path, typer.Option(help="Folder to create.", file_okay=False)],
    checkpoint: Annotated[
        str | None, typer.Option(help="best, or a checkpoint's id, instead of the final one.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Merge a job's adapter into its base model and download the result: safetensors that need no PEFT."""
    if to.exists():
        raise CommandError(f"{to} exists: a merge creates its folder", param="to")
    with client_of(context) as client:
        export = _awaited(client, job_id, {"format": "merged", "checkpoint": checkpoint})
        archive = to.with_name(f".{to.name}.tar")
        sha256 = fetch(client, export["content"], archive)
    unpack(archive, to)
    archive.unlink()
    line = f"vllm serve {shlex.quote(str(to))} --served-model-name {shlex.quote(job_id)}"
    if as_json:
        print_json({"path": str(to), "sha256": sha256, "serve": line})
    else:
        say(f"{to}  {line}")


def _awaited(client: Client, job_id: str, body: dict[str, Any]) -> dict[str, Any]:
    """The finished export; its progress goes to standard error meanwhile."""
    export = client.create(f"{JOBS}/{job_id}/exports", body)
    columns = (SpinnerColumn(), TextColumn("merge: {task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=stderr, transient=True) as bar:
        task = bar.add_task(plain(export["phase"]), total=None)
        while export["status"] not in ("succeeded", "failed"):
            time.sleep(POLL_SECONDS)
            export = client.get(f"{JOBS}/{job_id}/exports/{export['id']}")
            bar.update(task, description=plain(export["phase"]))
    if export["status"] != "succeeded":
        raise CommandError(export["failure"]["message"], code=export["failure"]["code"])
    return export
