"""`grpo merge`: a job's base model with the adapter in its weights, in a folder that loads without PEFT.

Boundary: the service merges while it sends. Where it has not the base model's weights and this machine has,
the same code merges here.
"""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from service.cli.commands.download import fetch_adapter, fetch_merged, unpack
from service.cli.http import complete
from service.cli.http.client import Client
from service.cli.options import client_of
from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import JsonFlag, print_json, say


def merge(
    context: typer.Context,
    job_id: Annotated[str, typer.Argument(metavar="JOB", autocompletion=complete.jobs)],
    to: Annotated[Path, typer.Option(help="Folder to make.", file_okay=False)],
    base: Annotated[
        Path | None,
        typer.Option(help="Folder of the base model here, to merge here.", exists=True, file_okay=False),
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="best, or a checkpoint's id, instead of the final one.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Download a job's base model with the adapter in its weights: safetensors that need no PEFT."""
    if to.exists():
        raise CommandError(f"{to} exists: a merge makes its folder", param="to")
    with client_of(context) as client:
        if base is None:
            archive = to.with_name(f".{to.name}.tar")
            fetch_merged(client, job_id, archive, checkpoint=checkpoint)
            unpack(archive, to)
            archive.unlink()
        else:
            _merge_here(client, job_id, base, to, checkpoint)
    line = f"vllm serve {shlex.quote(str(to))} --served-model-name {shlex.quote(job_id)}"
    if as_json:
        print_json({"path": str(to), "serve": line})
    else:
        say(f"{to}  {line}")


def _merge_here(client: Client, job_id: str, base: Path, to: Path, checkpoint: str | None) -> None:
    # numpy and the card's text take time to load, and no other command wants them
    from service.jobs.results.merging.archive import merged_archive
    from service.jobs.results.merging.bases import Folder
    from service.jobs.results.merging.errors import NotMergeable

    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=to.parent, prefix=".merge-") as scratch:
        adapter = unpack(fetch_adapter(client, job_id, Path(scratch), checkpoint=checkpoint)[0])
        try:
            merged_archive(Folder(base), adapter).write(Path(scratch) / "merged")
        except NotMergeable as error:
            raise CommandError(f"not merged: {error}", code=error.code) from error
        (Path(scratch) / "merged").rename(to)
