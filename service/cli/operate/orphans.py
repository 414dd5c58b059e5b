"""`grpo orphans`: stored objects that nobody can reach, straight from database and storage."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from service.cli.operate.settings import settings_here
from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import JsonFlag, print_json, say, size


def orphans(
    delete: Annotated[bool, typer.Option("--delete", help="Delete them.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Find stored objects older than a day that no row of the database names.

    A process that is killed between an upload and its row leaves them. After a restore of an older backup
    delete none: what was stored since has no row there.
    """
    found = _found(delete)
    if as_json:
        print_json([vars(each) for each in found])
        return
    for each in found:
        say(f"{each.key} ({size(each.num_bytes)})")
    say(f"{len(found)} orphans, {size(sum(each.num_bytes for each in found))}{', deleted' if delete else ''}")


def _found(delete: bool) -> list[Any]:
    from sqlalchemy.exc import DBAPIError

    from service.ops.orphans import AnothersStorage, find_orphans
    from service.platform.db import connect
    from service.platform.storage import StorageError, open_storage

    settings = settings_here()
    database, storage = connect(settings), open_storage(settings.storage_location)
    try:
        found = find_orphans(database, storage)
        for each in found if delete else ():
            storage.delete(each.key)
    except DBAPIError as error:
        raise CommandError(f"the database refused: {error.orig}") from error
    except AnothersStorage as error:
        raise CommandError(str(error)) from error
    except StorageError as error:
        raise CommandError(error.public) from error
    finally:
        database.engine.dispose()
    return found
