"""`grpo audit`: are the jobs' histories and stored archives sound? Straight from database and storage."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.operate.settings import settings_here
from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import JsonFlag, print_json, say


def audit(
    job_ids: Annotated[
        list[str] | None, typer.Argument(metavar="JOB…", help="Without any: all jobs.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Check jobs: states, fences, metrics and attempts in their history, the sha256 of all that is stored.

    Ends with 1 where a promise was broken. It reads every archive of these jobs.
    """
    found = _violations(job_ids)
    if as_json:
        print_json({"num_jobs": len(found), "violations": found})
    else:
        for job_id, violations in found.items():
            say(f"{job_id}: {'sound' if not violations else f'{len(violations)} violations'}")
            for each in violations:
                say(f"  {each['rule']}: {each['message']}", "red")
    if any(found.values()):
        raise typer.Exit(1)


def _violations(job_ids: list[str] | None) -> dict[str, list[dict[str, str]]]:
    from sqlalchemy.exc import DBAPIError

    from service.jobs.results import evidence
    from service.platform.db import connect
    from service.platform.storage import open_storage

    settings = settings_here()
    database, storage = connect(settings), open_storage(settings.storage_location)
    limit = settings.max_attempts_without_checkpoint
    try:
        return {
            job_id: [vars(each) for each in evidence.audit_job(database, storage, job_id, max_failures=limit)]
            for job_id in job_ids or evidence.job_ids(database)
        }
    except LookupError as error:
        raise CommandError(str(error.args[0]), code="job_not_found") from error
    except DBAPIError as error:
        raise CommandError(f"the database refused: {error.orig}") from error
    finally:
        database.engine.dispose()
