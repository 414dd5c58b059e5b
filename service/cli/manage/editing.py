"""`grpo edit` and `grpo delete`: change the name, notes and tags of jobs, archive them, delete them."""

from typing import Annotated, Any

import typer

from service.cli.http.client import JOBS
from service.cli.manage.listing import name_of
from service.cli.options import client_of, complete_jobs
from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import JsonFlag, print_line

JobIds = Annotated[list[str], typer.Argument(metavar="JOB…", autocompletion=complete_jobs)]


def edit(
    context: typer.Context,
    job_ids: JobIds,
    name: Annotated[str | None, typer.Option(help="New name; empty: none.")] = None,
    notes: Annotated[str | None, typer.Option(help="New notes; empty: none.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Add a tag; may be repeated.")] = None,
    untag: Annotated[list[str] | None, typer.Option(help="Remove a tag; may be repeated.")] = None,
    archive: Annotated[
        bool | None, typer.Option("--archive/--restore", help="Hide it from lists, or show it again.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Change the name, notes and tags of jobs, or archive them."""
    texts = {"name": name, "notes": notes}
    change: dict[str, Any] = {field: text or None for field, text in texts.items() if text is not None}
    if archive is not None:
        change["archived"] = archive
    if not change and not tag and not untag:
        hint = "give --name, --notes, --tag, --untag, --archive or --restore"
        raise CommandError("nothing to change", code="usage", hint=hint)
    client = client_of(context)
    for job_id in job_ids:
        path = f"{JOBS}/{job_id}"
        if tag or untag:
            before = [each for each in client.get(path)["tags"] if each not in (untag or ())]
            change["tags"] = list(dict.fromkeys([*before, *(tag or ())]))
        job = client.patch(path, change)
        about = [name_of(job), *job["tags"], *(["archived"] if job["archived"] else [])]
        print_line(job, "  ".join([job["id"], *filter(None, about)]), as_json=as_json)


def delete(
    context: typer.Context,
    job_ids: JobIds,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Delete finished jobs with their metrics, rollouts, checkpoints and results; their datasets stay."""
    if not yes:
        subject = job_ids[0] if len(job_ids) == 1 else f"{len(job_ids)} jobs"
        typer.confirm(f"Delete {subject} with all results?", abort=True, err=True)
    client = client_of(context)
    for job_id in job_ids:
        print_line(client.delete(f"{JOBS}/{job_id}"), f"{job_id} deleted", as_json=as_json)
