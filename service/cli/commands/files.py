"""`grpo files`: datasets on the service."""

import shlex
from typing import Annotated

import typer
from rich.filesize import decimal

from service.cli.http.upload import Content, uploaded
from service.cli.options import client_of, complete_files, complete_models
from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import (
    JsonFlag,
    at,
    counted,
    excerpt,
    json_line,
    note,
    print_fields,
    print_json,
    print_line,
    print_table,
    say,
)

SHOWN_CHARACTERS = 300
"""Maximum number of characters shown of one row."""
PROMPT_NAMES = ("question", "instruction", "problem", "query", "input", "text")
"""Usual names of a prompt's column, the likeliest first."""
FileArgument = Annotated[str, typer.Argument(metavar="FILE", autocompletion=complete_files)]

app = typer.Typer(no_args_is_help=True, help="Upload, preview, list, rename and delete datasets.")


@app.command()
def upload(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="JSONL, Parquet, CSV, TSV or JSON file, folder, or hf://owner/name."
        ),
    ],
    config: Annotated[str | None, typer.Option(help="Configuration of hf:// or a folder.")] = None,
    split: Annotated[str | None, typer.Option(help="Split of hf:// or a folder. [default: train]")] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="COLUMN=NAME",
            help="Rename a column; repeatable. A column renamed to prompt becomes the user's message.",
        ),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Keep the prompt as text, for a model without a chat template.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show what a dataset contains, upload it as JSONL and print its id."""
    file = uploaded(
        client_of(context),
        source,
        show=(lambda content: None) if as_json else _show,
        config=config,
        split=split,
        columns=_renames(columns or []),
        plain=plain,
    )
    print_line(file, file["id"], as_json=as_json)


def _show(content: Content) -> None:
    """Prints to standard error, because standard output contains only the id."""
    note(f"{content.name}: {counted(content.num_rows, 'row')}")
    note(f"columns: {', '.join(content.columns)}")
    note(f"first row: {excerpt(json_line(content.first), SHOWN_CHARACTERS)}")
    if not {"messages", "prompt"} & set(content.columns):
        note(
            f"No column is named prompt or messages: no job can use it. {_way_to_prompts(content)}", "yellow"
        )


def _way_to_prompts(content: Content) -> str:
    texts = [name for name in content.columns if isinstance(content.first.get(name), str)]
    if likely := [name for name in PROMPT_NAMES if name in texts] or texts:
        return f"Try --map {shlex.quote(f'{likely[0]}=prompt')}"
    return 'Write each row as {"messages": [{"role": "user", "content": "…"}]} and its other fields'


@app.command()
def preview(
    context: typer.Context,
    file_id: FileArgument,
    limit: Annotated[int, typer.Option(help="Number of rows.", min=1, max=100)] = 5,
    model: Annotated[
        str | None, typer.Option(help="Count tokens as this model does.", autocompletion=complete_models)
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the first rows of a dataset, its columns and its number of rows."""
    found = client_of(context).get(f"/v1/files/{file_id}/preview", limit=limit, model=model)
    if as_json:
        print_json(found)
        return
    tokens = found["tokens"]
    lengths = tokens and ", ".join(f"{name} {tokens[name]}" for name in ("min", "median", "p95", "max"))
    print_fields(
        (
            ("rows", found["num_rows"]),
            ("columns", ", ".join(found["columns"])),
            ("tokens", lengths and f"{lengths} ({counted(tokens['rows'], 'row')} counted)"),
        )
    )
    for number, row in enumerate(found["rows"], 1):
        say(f"{number}: {excerpt(json_line(row), SHOWN_CHARACTERS)}")


@app.command()
def rename(
    context: typer.Context,
    file_id: FileArgument,
    filename: Annotated[str, typer.Argument(metavar="NAME")],
    as_json: JsonFlag = False,
) -> None:
    """Rename a dataset."""
    file = client_of(context).patch(f"/v1/files/{file_id}", {"filename": filename})
    print_line(file, f"{file_id} is {filename}", as_json=as_json)


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
    file_id: FileArgument,
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
    columns = ("id", "name", "purpose", "size", "rows", "created")
    rows = (
        (f["id"], f["filename"], f["purpose"], decimal(f["bytes"]), f["num_rows"], at(f["created_at"]))
        for f in files
    )
    print_table(files, columns, rows, as_json=as_json)
