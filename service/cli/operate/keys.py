"""`grpo keys`: the tenants' API keys, directly in the deployment's database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.operate.settings import database_of, private_settings
from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import JsonFlag, at, print_line, print_table

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from service.platform.tables.core import ApiKey

SECONDS_PER_DAY = 24 * 3600
MAX_DAYS = 36_500
DEFAULT_HOURS, MAX_HOURS = 24, 720
MAX_LOG = 100_000
KEY_FIELDS = ("tenant", "name", "scopes", "job_id", "created_at", "expires_at", "revoked_at", "last_used_at")
LOG_FIELDS = ("created_at", "tenant", "key_id", "action", "object_id", "request_id")

KeyName = Annotated[str, typer.Argument(metavar="ID", help="The key's id (`grpo keys list`), or the key.")]

app = typer.Typer(
    no_args_is_help=True, help="Create, list, rotate and revoke API keys, and see their changes."
)


@contextmanager
def _transaction() -> Iterator[Session]:
    with database_of(private_settings()) as database, database.transaction() as session:
        yield session


@app.command()
def create(
    tenant: Annotated[str, typer.Option(help="The key's tenant; tenants cannot see each other's data.")],
    name: Annotated[str, typer.Option(help="Purpose of the key.")] = "",
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Only the scope read, without write.")
    ] = False,
    admin: Annotated[
        bool,
        typer.Option("--admin", help="Also the scope admin: manage the keys of all tenants."),
    ] = False,
    expires_in: Annotated[
        int | None,
        typer.Option(metavar="DAYS", help="Days until it expires; default: never.", min=1, max=MAX_DAYS),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Create a key and print it. It is shown only once: the database stores a digest."""
    from service.web.auth import create_key

    scopes = ["read", *([] if read_only else ["write"]), *(["admin"] if admin else [])]
    try:
        with _transaction() as session:
            expires_at = _expiry(session, expires_in)
            key = create_key(session, tenant, name=name, scopes=scopes, expires_at=expires_at)
    except ValueError as error:
        raise CommandError(str(error)) from error
    about = {"tenant": tenant, "name": name, "scopes": scopes, "expires_at": expires_at}
    print_line({"id": _public_id(key), "key": key, **about}, key, as_json=as_json)


def _expiry(session: Session, days: int | None) -> float | None:
    """Unix seconds by the database's clock, which decides when a key expires."""
    from service.platform.clock import read_clock

    return None if days is None else read_clock(session) + days * SECONDS_PER_DAY


@app.command("list")
def list_keys(as_json: JsonFlag = False) -> None:
    """List all keys and shared links, without their secrets."""
    from service.web.auth import list_keys as stored_keys

    with _transaction() as session:
        keys = stored_keys(session)
    documents = [{"id": key.public_id} | {name: getattr(key, name) for name in KEY_FIELDS} for key in keys]
    columns = ("id", "tenant", "name", "scopes", "shared job", "created", "expires", "revoked", "last used")
    print_table(documents, columns, map(_row, keys), as_json=as_json)


def _row(key: ApiKey) -> tuple[str, ...]:
    times = map(at, (key.created_at, key.expires_at, key.revoked_at, key.last_used_at))
    return key.public_id, key.tenant, key.name, ",".join(key.scopes), key.job_id or "–", *times


@app.command()
def revoke(
    key_id: KeyName,
    as_json: JsonFlag = False,
) -> None:
    """Revoke a key at once."""
    from service.web.auth import revoke_key

    public_id = _public_id(key_id)
    with _transaction() as session:
        revoked = revoke_key(session, public_id)
    if not revoked:
        raise CommandError(f"there is no unrevoked key {public_id}", hint="`grpo keys list` shows all")
    print_line({"id": public_id, "revoked": True}, f"{public_id} revoked", as_json=as_json)


@app.command()
def rotate(
    key_id: KeyName,
    old_key_hours: Annotated[
        int,
        typer.Option(metavar="HOURS", help="Hours for which the old key still works.", min=0, max=MAX_HOURS),
    ] = DEFAULT_HOURS,
    as_json: JsonFlag = False,
) -> None:
    """Print a new key with the same tenant, name, scopes and expiry. It is shown only once."""
    from service.web.auth import rotate_key

    public_id = _public_id(key_id)
    with _transaction() as session:
        key = rotate_key(session, public_id, old_key_hours=old_key_hours)
    if key is None:
        raise CommandError(f"there is no usable key {public_id}", hint="`grpo keys list` shows all")
    print_line({"id": _public_id(key), "key": key, "replaces": public_id}, key, as_json=as_json)


def _public_id(key: str) -> str:
    """The id in a key; any other text is taken as the id."""
    from service.web.auth import KEY_PATTERN

    match = KEY_PATTERN.fullmatch(key)
    return match[1] if match else key


@app.command()
def log(
    tenant: Annotated[str | None, typer.Option(help="Only changes to what this tenant owns.")] = None,
    limit: Annotated[int, typer.Option(help="Number of newest changes.", min=1, max=MAX_LOG)] = 50,
    as_json: JsonFlag = False,
) -> None:
    """Show who changed what: the newest changes that were made with keys, and to keys."""
    from service.platform import audit

    with _transaction() as session:
        entries = audit.newest(session, tenant=tenant, limit=limit)
    documents = [{name: getattr(entry, name) for name in LOG_FIELDS} for entry in entries]
    columns = ("time", "tenant", "key", "action", "object", "request")
    rows = ((at(entry["created_at"]), *list(entry.values())[1:]) for entry in documents)
    print_table(documents, columns, rows, as_json=as_json)
