"""`grpo models`: base models of the catalogue and fine-tuned ones."""

from pathlib import Path
from typing import Annotated

import typer

from service.cli.operate.settings import settings_here
from service.cli.options import client_of
from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import JsonFlag, at, print_line, print_table

app = typer.Typer(no_args_is_help=True, help="List models; add one to the embedded catalogue.")


@app.command("list")
def list_models(context: typer.Context, as_json: JsonFlag = False) -> None:
    """List the models that a job may start from."""
    models = client_of(context).get("/v1/models")["data"]
    rows = ((m["id"], m.get("owned_by"), at(m.get("created"))) for m in models)
    print_table(models, ("name", "owner", "created"), rows, as_json=as_json)


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="The name that jobs use.")],
    source: Annotated[
        str, typer.Argument(metavar="PATH_OR_HUB_ID[@REVISION]", help="A folder, or a hub id at a revision.")
    ],
    as_json: JsonFlag = False,
) -> None:
    """Add a base model to $GRPO_HOME/models.json."""
    from service.platform.catalog import Catalog, CatalogError

    # a folder's own name may contain an @
    path, _, revision = (source, "", "") if Path(source).expanduser().exists() else source.partition("@")
    try:
        entry = Catalog(settings_here()).add(name, path, revision or None)
    except CatalogError as error:
        raise CommandError(str(error)) from error
    revised = f" at revision {entry.revision}" if entry.revision else ""
    document = {"name": entry.name, "path": entry.path, "revision": entry.revision}
    print_line(document, f"{entry.name} is {entry.path}{revised}", as_json=as_json)
