"""`grpo list`: jobs with the change of their held-out reward, and why some need a look."""

from typing import Annotated, Any, Literal

import typer

from service.cli.commands.jobs import steps
from service.cli.http.client import JOBS
from service.cli.options import client_of, complete_models
from service.cli.terminal.output import JsonFlag, at, print_table, say

COLUMNS = ("id", "name", "status", "step", "held-out", "model", "created")
NEEDS_A_LOOK = "(!)"
ARCHIVED = {"no": "false", "only": "true", "all": None}
"""Option → parameter of the API."""


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
        Literal["no", "only", "all"], typer.Option(help="Exclude archived jobs, show only them, or show all.")
    ] = "no",
    sort: Annotated[
        str, typer.Option(help="created, name, status, model or held_out; descending with - before it.")
    ] = "-created",
    as_json: JsonFlag = False,
) -> None:
    """List jobs, newest first, without archived ones."""
    wanted = {"status": status, "model": model, "tag": tag, "q": query, "archived": ARCHIVED[archived]}
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
