"""`grpo files`: datasets on the service."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.http import complete
from service.cli.http.upload import uploaded
from service.cli.options import client_of
from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import JsonFlag, at, print_json, print_table, say, size

app = typer.Typer(no_args_is_help=True, help="Upload, list and delete datasets.")


@app.command()
def upload(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(metavar="PATH", help="JSONL, Parquet, CSV or JSON file, folder, or hf://owner/name."),
    ],
    split: Annotated[str | None, typer.Option(help="Of hf:// or a folder. [default: train]")] = None,
    columns: Annotated[
        list[str] | None, typer.Option("--map", metavar="COLUMN=NAME", help="Rename a column; repeatable.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Upload a dataset as JSONL and print its id."""
    with client_of(context) as client:
        file = uploaded(client, source, split=split, columns=_renames(columns or []))
    if as_json:
        print_json(file)
    else:
        say(file["id"])


def _renames(given: list[str]) -> dict[str, str]:
    """`question=prompt` → {"question": "prompt"}. Raises CommandError."""
    pairs = [each.partition("=") for each in given]
    if wrong := [each for each, (old, _, new) in zip(given, pairs, strict=True) if not (old and new)]:
        raise CommandError(f"--map {wrong[0]!r} is not COLUMN=NAME, such as question=prompt", code="usage")
    return {old: new for old, _, new in pairs}


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
    limit: Annotated[int, typer.Option(help="Number of newest files.", min=1)] = 20,
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
