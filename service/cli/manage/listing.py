"""`grpo list`: jobs with the change of their held-out reward, and why some need a look."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from service.cli.commands.jobs import steps
from service.cli.http.client import JOBS
from service.cli.options import client_of, complete_models
from service.cli.terminal.output import JsonFlag, at, print_table, say

COLUMNS = ("id", "name", "status", "step", "held-out", "model", "created")
NEEDS_A_LOOK = "(!)"
Archived = StrEnum("Archived", ["no", "only", "all"])
_ARCHIVED = {Archived.no: "false", Archived.only: "true", Archived.all: None}


def list_jobs(
    context: typer.Context,
    limit: Annotated[int, typer.Option(help="Number of jobs.", min=1)] = 20,
    status: Annotated[str | None, typer.Option(help="Only jobs with this status.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Only jobs that start from this model.", autocompletion=complete_models)
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Only jobs with this tag.")] = None,
    query: Annotated[str | None, typer.Option(help="Part of the name, suffix, id or model.")] = None,
    archived: Annotated[
        Archived, typer.Option(help="Exclude, include, or show only archived jobs.")
    ] = Archived.no,
    sort: Annotated[
        str, typer.Option(help="created, name, status, model or held_out; - before it: largest first.")
    ] = "-created",
    as_json: JsonFlag = False,
) -> None:
    """List jobs, newest first, without archived ones."""
    wanted = {"status": status, "model": model, "tag": tag, "q": query, "archived": _ARCHIVED[archived]}
    jobs = list(client_of(context).pages(JOBS, limit, sort=sort, **wanted))
    print_table(jobs, COLUMNS, map(_row, jobs), as_json=as_json)
    if not as_json:
        for job in jobs:
            if job["attention"]:
                say(f"{NEEDS_A_LOOK} {name_of(job) or job['id']}: {job['attention']}")


def name_of(job: dict[str, Any]) -> str:
    """The job's name or, without one, its suffix; may be empty."""
    return str(job["name"] or job["suffix"] or "")


def held_out_change(job: dict[str, Any]) -> str:
    """The change since before training, such as `+0.083`; empty if there is none."""
    verdict = job["eval"].get("verdict") or {}
    difference = verdict.get("difference")
    if difference is None:
        return ""
    low, high = verdict.get("low"), verdict.get("high")
    is_clear = low is not None and high is not None and (low > 0 or high < 0)
    return f"{difference:+.3f}".replace("-", "−") + ("" if is_clear else ", not significant")


def _row(job: dict[str, Any]) -> tuple[str, ...]:
    status = job["status"] + (f" {NEEDS_A_LOOK}" if job["attention"] else "")
    change = held_out_change(job)
    return job["id"], name_of(job), status, steps(job), change, job["model"], at(job["created_at"])
