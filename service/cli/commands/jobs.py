"""`grpo submit`, `list`, `status`, `events`, `cancel`, `pause`, `resume`: jobs over the API."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.commands.watch import watch_and_exit
from service.cli.http import complete
from service.cli.http.client import JOBS, Client
from service.cli.http.upload import uploaded
from service.cli.options import client_of
from service.cli.terminal.errors import CommandError
from service.cli.terminal.interrupts import explained
from service.cli.terminal.output import JsonFlag, at, duration, print_fields, print_json, print_table, say
from service.cli.terminal.progress import waiting

JobId = Annotated[str, typer.Argument(metavar="JOB", autocompletion=complete.jobs)]
CREATING = (
    "The job may have been created all the same: `grpo list` shows it, `grpo cancel ID` ends it. "
    "The same command again would make another one."
)
"""Ctrl-C between the request and its answer."""
DATASETS = ("training_file", "validation_file")


def submit(
    context: typer.Context,
    job_file: Annotated[Path, typer.Argument(metavar="JOB.json", exists=True, dir_okay=False)],
    training_file: Annotated[str | None, typer.Option(help="Dataset to upload and train on.")] = None,
    validation_file: Annotated[str | None, typer.Option(help="Dataset to upload and evaluate on.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Start from this model.", autocompletion=complete.models)
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Watch it to the end.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Submit a job: the file is the request's body; datasets named by a path or hf:// are uploaded first."""
    body = read_job(job_file)
    given = {"training_file": training_file, "validation_file": validation_file}
    body |= {name: from_here(source) for name, source in given.items() if source}
    if model:
        body["model"] = model
    with client_of(context) as client:
        body = with_uploads(client, body, job_file.parent)
        with explained(CREATING), waiting("checking the job and its rows…"):
            job = client.create(JOBS, body)
        say_created(job, as_json=as_json)
        if watch:
            watch_and_exit(client, job["id"], as_json=as_json)


def say_created(job: dict[str, Any], *, as_json: bool) -> None:
    """Its id, and what the checks warn of."""
    if as_json:
        print_json(job)
        return
    say(job["id"])
    for warning in job["warnings"]:
        say(f"warning: {_text(warning)}", "yellow")


def read_job(path: Path) -> dict[str, Any]:
    """The job file. Raises CommandError where it is not a JSON object."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CommandError(f"{path} is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise CommandError(f"{path} holds no JSON object")
    return body


def from_here(source: str) -> str:
    """A dataset given on the command line: its path is relative to the working directory."""
    return source if source.startswith(("hf://", "file-")) else str(Path(source).absolute())


def with_uploads(client: Client, body: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The body with each dataset replaced by the id of the uploaded file; paths are relative to `folder`."""
    body = dict(body)
    for name in DATASETS:
        value = body.get(name)
        if not isinstance(value, str) or value.startswith("file-"):
            continue
        is_hub = value.startswith("hf://")
        if not is_hub and not (folder / value).exists():
            hint = "give a file id, a path to upload or hf://owner/name"
            raise CommandError(f"{folder / value} does not exist", param=name, hint=hint)
        body[name] = uploaded(client, value if is_hub else str(folder / value))["id"]
    return body


def list_jobs(
    context: typer.Context,
    limit: Annotated[int, typer.Option(help="At most so many, newest first.", min=1)] = 20,
    as_json: JsonFlag = False,
) -> None:
    """List jobs, newest first."""
    with client_of(context) as client:
        jobs = list(client.pages(JOBS, limit))
    if as_json:
        print_json(jobs)
        return
    print_table(
        ("id", "status", "step", "method", "model", "created"),
        [
            (
                job["id"],
                job["status"],
                _steps(job),
                _method(job),
                job["model"],
                at(job["created_at"]),
            )
            for job in jobs
        ],
    )


def status(context: typer.Context, job_id: JobId, as_json: JsonFlag = False) -> None:
    """Show one job."""
    with client_of(context) as client:
        job = client.get(f"{JOBS}/{job_id}")
    if as_json:
        print_json(job)
        return
    failure = job.get("failure") or {}
    evaluation = {name: row for name, row in (job.get("eval") or {}).items() if row}
    print_fields(
        (
            ("id", job["id"]),
            ("status", job["status"]),
            ("phase", job["phase"]),
            ("queue", (job.get("queue") or {}).get("reason")),
            ("method", _method(job)),
            ("model", job["model"]),
            ("training file", job["training_file"]),
            ("step", _steps(job)),
            ("remaining", duration(job["progress"].get("seconds_remaining"))),
            ("attempt", job["attempt"]),
            *((f"eval {name}", _evaluation(row)) for name, row in evaluation.items() if name != "retention"),
            *(
                (f"retention {name}", _evaluation(row.get("verdict") or row["last"]))
                for name, row in evaluation.get("retention", {}).items()
            ),
            ("created", at(job["created_at"])),
            ("finished", at(job.get("finished_at"))),
            ("expected", _span((job.get("estimate") or {}).get("seconds"), duration)),
            ("took", duration((job.get("actual") or {}).get("seconds"))),
            ("trained model", job.get("fine_tuned_model")),
            ("failure", f"{failure['code']}: {failure['message']}" if failure else None),
            ("hint", failure.get("hint")),
            ("evidence", "\n".join(dict.fromkeys(map(str, failure.get("evidence", []))))),
            ("warnings", "\n".join(_text(warning) for warning in job["warnings"])),
        )
    )


def events(
    context: typer.Context,
    job_id: JobId,
    limit: Annotated[int, typer.Option(help="The newest so many.", min=1)] = 20,
    as_json: JsonFlag = False,
) -> None:
    """Show a job's newest events, oldest of them first."""
    with client_of(context) as client:
        newest = list(client.pages(f"{JOBS}/{job_id}/events", limit))
    if as_json:
        print_json(newest)
        return
    print_table(
        ("time", "level", "message"),
        [(at(e["created_at"]), e["level"], e["message"]) for e in reversed(newest)],
    )


def cancel(context: typer.Context, job_id: JobId, as_json: JsonFlag = False) -> None:
    """Cancel a job; its last checkpoint stays downloadable."""
    _command(context, job_id, "cancel", as_json)


def pause(context: typer.Context, job_id: JobId, as_json: JsonFlag = False) -> None:
    """Pause a job after a checkpoint; its worker is free for others."""
    _command(context, job_id, "pause", as_json)


def resume(context: typer.Context, job_id: JobId, as_json: JsonFlag = False) -> None:
    """Resume a paused job from its checkpoint."""
    _command(context, job_id, "resume", as_json)


def _command(context: typer.Context, job_id: str, verb: str, as_json: bool) -> None:
    with client_of(context) as client:
        job = client.post(f"{JOBS}/{job_id}/{verb}")
    if as_json:
        print_json(job)
    else:
        phase = f" ({job['phase']})" if job["phase"] not in (None, "", job["status"]) else ""
        say(f"{job['id']} {job['status']}{phase}")


def _span(expected: dict[str, float] | None, unit: Callable[[float], str]) -> str | None:
    return f"{unit(expected['low'])} to {unit(expected['high'])}" if expected else None


def _method(job: dict[str, Any]) -> str:
    """Its true type: strict clients know fewer and are told another one."""
    return str(job["method"].get("rule") or job["method"]["type"])


def _text(warning: dict[str, Any] | str) -> str:
    return warning if isinstance(warning, str) else warning["message"]


def _steps(job: dict[str, Any]) -> str:
    return f"{job['progress']['step']}/{job['progress']['total_steps']}"


def _evaluation(row: dict[str, Any]) -> str:
    if "text" in row:
        return str(row["text"])
    for name in ("reward", "loss"):
        if row.get(name) is not None:
            return f"{name} {row[name]:.3f} at step {row.get('step')}"
    return f"no row could be scored at step {row.get('step')}"
