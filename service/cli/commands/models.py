"""`grpo models`: base models of the catalogue and fine-tuned ones."""

from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import httpx
import typer

from service.cli.operate.settings import database_of, settings_here
from service.cli.options import client_of, quick_answer
from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import JsonFlag, at, note, print_line, print_table
from service.hub.child_process import find_model
from service.hub.models import HubError, is_commit, is_hub_id
from service.settings import Settings

if TYPE_CHECKING:
    from service.platform.catalog import Catalog, CatalogEntry

app = typer.Typer()
FITS = {True: "fits", False: "no", None: "?"}
COLUMNS = ("name", "owner", "size", "context", "family", "LoRA", "full", "created")
SourceArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[PATH_OR_HUB_ID[@REVISION]]", help="A folder, or a hub id; without it NAME is the hub id."
    ),
]


@app.callback(invoke_without_command=True)
def show_models(context: typer.Context) -> None:
    """List models; add one to the catalogue of this machine, or remove it."""
    if context.invoked_subcommand is None:
        list_models(context)


@app.command("list")
def list_models(context: typer.Context, as_json: JsonFlag = False) -> None:
    """List the models that a job may start from, and whether their training fits the workers."""
    models = client_of(context).get("/v1/models")["data"]
    print_table(models, COLUMNS, map(_cells, models), as_json=as_json)


def _cells(model: dict[str, Any]) -> tuple[Any, ...]:
    fits = model.get("fits") or {}
    return (
        model["id"],
        model.get("owned_by"),
        size(model.get("size_bytes")),
        model.get("context_length"),
        model.get("family"),
        *(FITS[fits.get(kind)] for kind in ("lora", "full")),
        at(model.get("created") or None),
    )


def size(num_bytes: int | None) -> str:
    """Bytes in GB or MB."""
    if num_bytes is None:
        return ""
    return f"{num_bytes / 10**9:.1f} GB" if num_bytes >= 10**8 else f"{num_bytes / 10**6:.1f} MB"


@app.command()
def add(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The name that jobs use, or a hub id at its newest revision.")],
    source: SourceArgument = None,
    as_json: JsonFlag = False,
) -> None:
    """Add a base model to $GRPO_HOME/models.json; a worker downloads a hub model with its first job."""
    from service.platform.catalog import Catalog, CatalogError

    settings = settings_here()
    catalog = Catalog(settings)
    try:
        entry = _added(settings, catalog, name, source)
    except CatalogError as error:
        raise CommandError(str(error)) from error
    except HubError as error:
        raise CommandError(str(error), code=error.code, hint=error.hint or None) from error
    revised = f" at revision {entry.revision}" if entry.revision else ""
    sized = f" ({size(entry.size_bytes)}; downloaded with its first job)" if entry.must_download else ""
    document = {
        "name": entry.name,
        "path": entry.path,
        "revision": entry.revision,
        "size_bytes": entry.size_bytes,
        "catalogue": str(catalog.file),
    }
    shown = f"{entry.name} is {entry.path}{revised}{sized}, in {catalog.file}"
    print_line(document, shown, as_json=as_json)
    _warn_of_another_home(context, entry.name)


def _warn_of_another_home(context: typer.Context, name: str) -> None:
    """Warn if a service runs at the given URL that does not list the model."""
    try:
        answer = quick_answer(context, "/v1/models")
        if answer.status_code == HTTPStatus.UNAUTHORIZED:
            why = "refuses the key of this home"
        elif any(model["id"] == name for model in answer.raise_for_status().json()["data"]):
            return
        else:
            why = "does not list it"
    except (CommandError, httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        return  # no service to compare with
    url = context.find_root().params["url"]
    message = f"warning: the service at {url} {why}, so it probably reads another catalogue. "
    message += "Set GRPO_HOME to the home of that service, and add the model again."
    note(message, "yellow")


def _added(settings: Settings, catalog: "Catalog", name: str, source: str | None) -> "CatalogEntry":
    """Adds the model and returns its entry. Raises CatalogError, HubError."""
    given = source or name
    # a folder's own name may contain an @
    is_folder = Path(given).expanduser().exists()
    path, _, revision = (given, "", "") if is_folder else given.partition("@")
    name = name if source else (Path(path).name if is_folder else path)
    if is_folder or not is_hub_id(path):
        return catalog.add(name, path, revision or None)
    try:
        model = find_model(settings, path, revision or None)
    except HubError as error:
        if error.is_temporary and is_commit(revision):
            # without a network the engine may find the model in the cache of the hub's library
            return catalog.add(name, path, revision)
        raise
    return catalog.add_from_hub(name, model, replaces=True)


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="A base model of the catalogue.")], as_json: JsonFlag = False
) -> None:
    """Remove a base model from the catalogue of this machine; its files in $GRPO_HOME are deleted."""
    from service.models_catalog.removal import remove_base
    from service.platform.catalog import CatalogError

    settings = settings_here()
    with database_of(settings) as database, database.reading() as session:
        try:
            removed = remove_base(session, settings, name)
        except CatalogError as error:
            raise CommandError(str(error), code="model_not_removed") from error
    freed = f"{size(removed.freed_bytes)} freed" if removed.freed_bytes else "no files deleted"
    kept = f"; the folder {removed.kept} stays" if removed.kept else ""
    document = {"name": name, "freed_bytes": removed.freed_bytes, "kept": removed.kept}
    print_line(document, f"Removed {name}: {freed}{kept}", as_json=as_json)
