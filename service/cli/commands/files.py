"""`grpo files`: datasets on the service."""

from typing import Annotated

import typer
from rich.filesize import decimal

from service.cli.http.upload import uploaded
from service.cli.options import client_of, complete_files
from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import JsonFlag, at, print_line, print_table

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
    file = uploaded(client_of(context), source, split=split, columns=_renames(columns or []))
    print_line(file, file["id"], as_json=as_json)


def _renames(given: list[str]) -> dict[str, str]:
    """`question=prompt` → {"question": "prompt"}. Raises CommandError."""
    renames = {}
    for each in given:
        column, _, name = each.partition("=")
        if not (column and name):
            raise CommandError(f"--map {each!r} is not COLUMN=NAME, such as question=prompt", code="usage")
        renames[column] = name
    return renames


@app.command()
def delete(
    context: typer.Context,
    file_id: Annotated[str, typer.Argument(metavar="FILE", autocompletion=complete_files)],
    as_json: JsonFlag = False,
) -> None:
    """Delete a file that no unfinished job needs."""
    deleted = client_of(context).delete(f"/v1/files/{file_id}")
    print_line(deleted, f"{file_id} deleted", as_json=as_json)


@app.command("list")
def list_files(
    context: typer.Context,
    limit: Annotated[int, typer.Option(help="Number of newest files.", min=1)] = 20,
    as_json: JsonFlag = False,
) -> None:
    """List files: datasets and the jobs' results."""
    files = list(client_of(context).pages("/v1/files", limit))
    columns = ("id", "name", "purpose", "size", "created")
    rows = ((f["id"], f["filename"], f["purpose"], decimal(f["bytes"]), at(f["created_at"])) for f in files)
    print_table(files, columns, rows, as_json=as_json)
