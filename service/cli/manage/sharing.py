"""`grpo share`: links to a job's page that may only read this job, until they expire."""

from typing import Annotated

import typer

from service.cli.http.client import JOBS
from service.cli.options import client_of, complete_jobs
from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import JsonFlag, at, print_line, print_table

SECONDS_PER_DAY = 24 * 3600
MAX_DAYS = 90


def share(
    context: typer.Context,
    job_id: Annotated[str, typer.Argument(metavar="JOB", autocompletion=complete_jobs)],
    days: Annotated[int, typer.Option(help="Days until the link expires.", min=1, max=MAX_DAYS)] = 7,
    list_links: Annotated[bool, typer.Option("--list", help="List active links instead.")] = False,
    revoke: Annotated[str | None, typer.Option(metavar="ID", help="Revoke this link instead.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Create a link to the job's page and print it, this once.

    Anyone with the link can read the job with its settings and rollouts, which contain text of the dataset.
    """
    if list_links and revoke is not None:
        raise CommandError("--list and --revoke exclude each other", code="usage")
    client, path = client_of(context), f"{JOBS}/{job_id}/shares"
    if revoke is not None:
        print_line(client.delete(f"{path}/{revoke}"), f"{revoke} revoked", as_json=as_json)
    elif list_links:
        shares = client.get(path)["data"]
        rows = ((one["id"], at(one["created_at"]), at(one["expires_at"])) for one in shares)
        print_table(shares, ("id", "created", "expires"), rows, as_json=as_json)
    else:
        made = client.post(path, {"expires_in_seconds": days * SECONDS_PER_DAY})
        # at the address that this command uses: the service may be behind a proxy with another one
        made["url"] = f"{client.url}/#{made['url'].partition('#')[2]}"
        print_line(made, made["url"], as_json=as_json)
