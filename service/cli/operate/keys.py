"""`grpo keys`: the tenants' API keys, straight in the deployment's database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.operate.settings import keep_private, settings_here
from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import JsonFlag, at, print_json, print_table, say

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from service.platform.tables.core import ApiKey, AuditEntry

SECONDS_PER_DAY = 24 * 3600
MAX_DAYS = 36_500
MAX_LOG = 100_000

app = typer.Typer(
    no_args_is_help=True, help="Create, list and revoke API keys, and see what was done with them."
)


@contextmanager
def _transaction() -> Iterator[Session]:
    # SQLAlchemy is a quarter of a second that the HTTP commands need not wait for
    from sqlalchemy.exc import DBAPIError

    from service.platform.db import connect

    keep_private()
    database = connect(settings_here())
    try:
        with database.transaction() as session:
            yield session
    except DBAPIError as error:
        raise CommandError(
            f"the database refused: {error.orig}", hint="`grpo migrate` brings its tables up to date"
        ) from error
    finally:
        database.engine.dispose()


@app.command()
def create(
    tenant: Annotated[str, typer.Option(help="Whose key it is; tenants see nothing of one another.")],
    name: Annotated[str, typer.Option(help="What the key is for.")] = "",
    read_only: Annotated[bool, typer.Option("--read-only", help="May look, may change nothing.")] = False,
    expires_in: Annotated[
        int | None,
        typer.Option(metavar="DAYS", help="Days until it expires; without it, never.", min=1, max=MAX_DAYS),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Create a key and print it: this once, only a digest is stored."""
    from service.web.auth import KEY_PATTERN, create_key

    scopes = ("read",) if read_only else ("read", "write")
    try:
        with _transaction() as session:
            expires_at = _expiry(session, expires_in)
            key = create_key(session, tenant, name=name, scopes=scopes, expires_at=expires_at)
    except ValueError as error:
        raise CommandError(str(error)) from error
    if not as_json:
        print(key)
        return
    match = KEY_PATTERN.fullmatch(key)
    assert match is not None
    about = {"tenant": tenant, "name": name, "scopes": scopes, "expires_at": expires_at}
    print_json({"id": match[1], "key": key, **about})


def _expiry(session: Session, days: int | None) -> float | None:
    """Unix seconds by the clock that will close the key: the database's."""
    from sqlalchemy import select

    from service.platform.clock import db_now

    return None if days is None else session.scalars(select(db_now())).one() + days * SECONDS_PER_DAY


@app.command("list")
def list_keys(as_json: JsonFlag = False) -> None:
    """List all keys, without their secrets."""
    from service.web.auth import list_keys as stored_keys

    with _transaction() as session:
        keys = stored_keys(session)
    if as_json:
        print_json([_document(key) for key in keys])
        return
    print_table(
        ("id", "tenant", "name", "scopes", "created", "expires", "revoked"),
        [
            (
                *(key.public_id, key.tenant, key.name, ",".join(key.scopes)),
                *(at(key.created_at), at(key.expires_at), at(key.revoked_at)),
            )
            for key in keys
        ],
    )


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The key's id (`grpo keys list`), or the key.")],
    as_json: JsonFlag = False,
) -> None:
    """Revoke a key at once."""
    from service.web.auth import KEY_PATTERN, revoke_key

    match = KEY_PATTERN.fullmatch(key_id)
    public_id = match[1] if match else key_id
    with _transaction() as session:
        revoked = revoke_key(session, public_id)
    if not revoked:
        raise CommandError(f"there is no unrevoked key {public_id}", hint="`grpo keys list` shows all")
    if as_json:
        print_json({"id": public_id, "revoked": True})
    else:
        say(f"Key {public_id} opens nothing any more.")


@app.command()
def log(
    tenant: Annotated[str | None, typer.Option(help="Changes of this tenant's things only.")] = None,
    limit: Annotated[int, typer.Option(help="So many at most.", min=1, max=MAX_LOG)] = 50,
    as_json: JsonFlag = False,
) -> None:
    """Show who changed what: the newest changes that were made with keys, and to keys."""
    from service.platform import audit

    with _transaction() as session:
        entries = audit.newest(session, tenant=tenant, limit=limit)
    if as_json:
        print_json([_change(entry) for entry in entries])
        return
    print_table(
        ("time", "tenant", "key", "action", "object", "request"),
        [(at(entry.created_at), *list(_change(entry).values())[1:]) for entry in entries],
    )


def _change(entry: AuditEntry) -> dict[str, object]:
    names = ("created_at", "tenant", "key_id", "action", "object_id", "request_id")
    return {name: getattr(entry, name) for name in names}


def _document(key: ApiKey) -> dict[str, object]:
    names = ("tenant", "name", "scopes", "created_at", "expires_at", "revoked_at")
    return {"id": key.public_id, **{name: getattr(key, name) for name in names}}
