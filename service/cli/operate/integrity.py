"""`grpo audit` and `grpo orphans`: compare the database with the storage, directly and not over HTTP."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.filesize import decimal

from service.cli.operate.settings import database_of, settings_here
from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import JsonFlag, counted, print_json, say

STORAGE_HINT = "`grpo doctor` shows the reason"


def audit(
    job_ids: Annotated[list[str] | None, typer.Argument(metavar="JOB…", help="Default: all jobs.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Check each job's history (states, fences, metrics, attempts) and the SHA-256 of all its stored files.

    Exit code 1 if a check fails. Reads every archive of the jobs.
    """
    found = dict(_audited(job_ids or []))
    if as_json:
        print_json({"num_jobs": len(found), "violations": found})
    else:
        for job_id, violations in found.items():
            say(f"{job_id}: {'sound' if not violations else counted(len(violations), 'violation')}")
            for each in violations:
                say(f"  {each['rule']}: {each['message']}", "red")
    if any(found.values()):
        raise typer.Exit(1)


def _audited(job_ids: list[str]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Each job with its violations; all jobs if none is named. Raises CommandError."""
    from service.jobs.results import evidence
    from service.platform.storage import StorageError, open_storage

    settings = settings_here()
    limit = settings.max_attempts_without_checkpoint
    with database_of(settings) as database:
        try:
            storage = open_storage(settings.storage_location)
            for job_id in job_ids or evidence.job_ids(database):
                try:
                    broken = evidence.audit_job(database, storage, job_id, max_failures=limit)
                except LookupError as error:
                    if not job_ids:
                        continue  # it was deleted after the list was read
                    raise CommandError(str(error.args[0]), code="job_not_found") from error
                yield job_id, [vars(each) for each in broken]
        except StorageError as error:
            raise CommandError(error.public, hint=STORAGE_HINT) from error


def orphans(
    delete: Annotated[bool, typer.Option("--delete", help="Delete them.")] = False, as_json: JsonFlag = False
) -> None:
    """Find stored objects older than a day that no row of the database refers to.

    A process that is killed after an upload, but before its row is written, leaves such an object. After
    restoring an older backup, do not delete any: the backup has no rows for objects stored since then.
    """
    from service.ops.orphans import ForeignStorage, find_orphans
    from service.platform.storage import StorageError, open_storage

    settings = settings_here()
    with database_of(settings) as database:
        try:
            storage = open_storage(settings.storage_location)
            found = find_orphans(database, storage)
            for key in found if delete else ():
                storage.delete(key)
        except ForeignStorage as error:
            raise CommandError(str(error)) from error
        except StorageError as error:
            raise CommandError(error.public, hint=STORAGE_HINT) from error
    if as_json:
        print_json([{"key": key, "num_bytes": num_bytes} for key, num_bytes in found.items()])
        return
    for key, num_bytes in found.items():
        say(f"{key} ({decimal(num_bytes)})")
    total = decimal(sum(found.values()))
    say(f"{counted(len(found), 'orphan')}, {total}{', deleted' if delete else ''}")
