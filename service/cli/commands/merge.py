"""`grpo merge`: a job's base model with the adapter in its weights, in a folder that loads without PEFT.

Boundary: a worker merges; this command creates the export, waits for it and downloads it.
"""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from service.cli.commands.download import fetch, unpack
from service.cli.http.client import JOBS
from service.cli.options import Checkpoint, JobId, client_of
from service.cli.terminal.errors import CommandError, failed
from service.cli.terminal.output import JsonFlag, print_line
from service.cli.terminal.progress import waiting


def merge(
    context: typer.Context,
    job_id: JobId,
    to: Annotated[Path, typer.Option(help="Folder to create.", file_okay=False)],
    checkpoint: Checkpoint = None,
    as_json: JsonFlag = False,
) -> None:
    """Merge a job's adapter into its base model and download the result: safetensors that need no PEFT."""
    if to.exists():
        raise CommandError(f"{to} already exists; give a folder that does not exist", param="to")
    client, exports = client_of(context), f"{JOBS}/{job_id}/exports"
    export = client.create(exports, {"format": "merged", "checkpoint": checkpoint})
    with waiting("merging…") as show:
        export = client.awaited(
            f"{exports}/{export['id']}", export, lambda now: show(f"merge: {now['phase']}")
        )
    if export["status"] != "succeeded":
        raise failed(export, f"grpo logs {job_id} --export {export['id']}")
    archive = to.with_name(f".{to.name}.tar")
    sha256 = fetch(client, export["content"], archive)
    unpack(archive, to)
    archive.unlink()
    serve = f"vllm serve {shlex.quote(str(to))} --served-model-name {shlex.quote(job_id)}"
    document = {"path": str(to), "sha256": sha256, "serve": serve, "difference": export["difference"]}
    print_line(document, f"{to}  {serve}", as_json=as_json)
