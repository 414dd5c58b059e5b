"""`grpo files`: datasets on the service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli.http import complete
from service.cli.http.upload import uploaded
from service.cli.options import client_of
from service.cli.terminal.output import JsonFlag, at, print_json, print_table, say, size

app = typer.Typer(no_args_is_help=True, help="Upload, list and delete datasets.")


@app.command()
def upload(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(help="JSONL, one row a line.", exists=True, dir_okay=False)],
    as_json: JsonFlag = False,
) -> None:
    """Upload a dataset and print its id."""
    with client_of(context) as client:
        file = uploaded(client, path)
    if as_json:
        print_json(file)
    else:
        say(file["id"])


@app.command()
def delete(
    context: typer.Context,
    file_id: Annotated[str, typer.Argument(metavar="FILE", autocompletion=complete.files)],
    as_json: JsonFlag = False,
) -> None:
    """Delete a file that no unfinished job needs."""
    with client_of(context) as client:
        deleted = client.delete(f"/v1/files/{file_id}")
    if as_json:
        print_json(deleted)
    else:
        say(f"{file_id} deleted")


@app.command("list")
def list_files(
    context: typer.Context,
    limit: Annotated[int, typer.Option(help="At most so many, newest first.", min=1)] = 20,
    as_json: JsonFlag = False,
) -> None:
    """List files: datasets and the jobs' results."""
    with client_of(context) as client:
        files = list(client.pages("/v1/files", limit))
    if as_json:
        print_json(files)
        return
    print_table(
        ("id", "name", "purpose", "size", "created"),
        [(f["id"], f["filename"], f["purpose"], size(f["bytes"]), at(f["created_at"])) for f in files],
    )
