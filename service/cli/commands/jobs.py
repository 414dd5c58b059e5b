"""`grpo submit`, `status`, `events`, `checkpoints`, `cancel`, `pause`, `resume`: jobs over the API."""

from pathlib import Path
from typing import Annotated, Any

import typer

from grpo_engine.contract.strict_json import parse_document
from service.cli.commands.watch import watch_and_exit
from service.cli.http.client import JOBS, Client
from service.cli.http.upload import uploaded
from service.cli.options import JobFile, JobId, Watch, client_of, complete_models
from service.cli.terminal.errors import CommandError, interruptible, place_of
from service.cli.terminal.output import (
    JsonFlag,
    at,
    duration,
    print_fields,
    print_json,
    print_line,
    print_table,
    say,
    short_number,
)
from service.cli.terminal.progress import waiting

CREATING = (
    "The job may have been created: `grpo list` shows it, `grpo cancel ID` ends it. "
    "Running the same command again would create another one."
)
"""Ctrl-C between the request and its response."""
DATASETS = ("training_file", "validation_file")


def submit(
    context: typer.Context,
    job_file: JobFile,
    training_file: Annotated[str | None, typer.Option(help="Dataset to upload and train on.")] = None,
    validation_file: Annotated[str | None, typer.Option(help="Dataset to upload and evaluate on.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Start from this model.", autocompletion=complete_models)
    ] = None,
    watch: Watch = False,
    as_json: JsonFlag = False,
) -> None:
    """Submit a job: the file is the request's body; datasets named by a path or hf:// are uploaded first."""
    client = client_of(context)
    datasets = {"training_file": training_file, "validation_file": validation_file}
    body = body_of(client, job_file, datasets, model)
    create_job(client, JOBS, body, watch=watch, as_json=as_json)


def create_job(client: Client, path: str, body: dict[str, Any], *, watch: bool, as_json: bool) -> None:
    """Creates a job, prints its id and warnings, and watches it if requested."""
    with interruptible(lambda: CREATING), waiting("checking the job and its rows…"):
        job = client.create(path, body)
    print_line(job, job["id"], as_json=as_json)
    if not as_json:
        for warning in job["warnings"]:
            say(f"warning: {warning['message']}", "yellow")
    if watch:
        watch_and_exit(client, job["id"], as_json=as_json)


def body_of(
    client: Client, job_file: Path, datasets: dict[str, str | None], model: str | None
) -> dict[str, Any]:
    """The job file's body with the options that replace parts of it, and with its datasets uploaded.

    A dataset given as an option is relative to the working directory, one in the job file to its folder.
    """
    body = read_job(job_file)
    for name, source in datasets.items():
        if source:
            is_path = not source.startswith(("hf://", "file-"))
            body[name] = str(Path(source).absolute()) if is_path else source
    return with_uploads(client, body | ({"model": model} if model else {}), job_file.parent)


def read_job(path: Path) -> dict[str, Any]:
    """The job file. Raises CommandError if it is not a JSON object."""
    try:
        body = parse_document(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CommandError(f"{path} is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise CommandError(f"{path} does not contain a JSON object")
    return body


def with_uploads(client: Client, body: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The body with each dataset replaced by the id of the uploaded file; paths are relative to `folder`."""
    body = dict(body)
    for name in DATASETS:
        value = body.get(name)
        if not isinstance(value, str) or not value or value.startswith("file-"):
            continue
        is_hub = value.startswith("hf://")
        if not is_hub and not (folder / value).exists():
            hint = "give a file id, a path to upload or hf://owner/name"
            raise CommandError(f"{folder / value} does not exist", param=name, hint=hint)
        body[name] = uploaded(client, value if is_hub else str(folder / value))["id"]
    return body


def status(context: typer.Context, job_id: JobId, as_json: JsonFlag = False) -> None:
    """Show one job."""
    job = client_of(context).get(f"{JOBS}/{job_id}")
    if as_json:
        print_json(job)
        return
    failure = job.get("failure") or {}
    evaluation = {name: row for name, row in (job.get("eval") or {}).items() if row}
    retention = evaluation.pop("retention", {})
    print_fields(
        (
            ("id", job["id"]),
            ("name", job.get("name")),
            ("tags", ", ".join(job.get("tags") or [])),
            ("notes", job.get("notes")),
            ("status", job["status"]),
            ("phase", job["phase"]),
            ("queue", (job.get("queue") or {}).get("reason")),
            ("method", method_of(job)),
            ("model", job["model"]),
            ("training file", job["training_file"]),
            ("step", steps(job)),
            ("remaining", duration(job["progress"].get("seconds_remaining"))),
            ("attempt", job["attempt"]),
            *((f"eval {name}", _evaluation(row)) for name, row in evaluation.items()),
            *(
                (f"retention {name}", _evaluation(row.get("verdict") or row["last"]))
                for name, row in retention.items()
            ),
            ("created", at(job["created_at"])),
            ("finished", at(job.get("finished_at"))),
            ("expected", _expected(job.get("estimate") or {})),
            ("took", duration((job.get("actual") or {}).get("seconds"))),
            ("trained model", job.get("fine_tuned_model")),
            ("failure", f"{failure['code']}: {failure['message']}" if failure else None),
            ("hint", failure.get("hint")),
            ("see", place_of(failure["code"], is_failure=True) if failure else None),
            ("evidence", "\n".join(dict.fromkeys(map(str, failure.get("evidence", []))))),
            ("attention", job.get("attention")),
            ("warnings", "\n".join(warning["message"] for warning in job["warnings"])),
        )
    )


def events(
    context: typer.Context,
    job_id: JobId,
    limit: Annotated[int, typer.Option(help="Number of newest events.", min=1)] = 20,
    as_json: JsonFlag = False,
) -> None:
    """Show a job's newest events, oldest first."""
    newest = list(client_of(context).pages(f"{JOBS}/{job_id}/events", limit))
    rows = ((at(e["created_at"]), e["level"], e["message"]) for e in reversed(newest))
    print_table(newest, ("time", "level", "message"), rows, as_json=as_json)


def checkpoints(
    context: typer.Context,
    job_id: JobId,
    limit: Annotated[int, typer.Option(help="Number of newest checkpoints.", min=1)] = 20,
    as_json: JsonFlag = False,
) -> None:
    """List a job's checkpoints, newest first, with their held-out and training rewards."""
    found = list(client_of(context).pages(f"{JOBS}/{job_id}/checkpoints", limit))
    columns = ("step", "held-out reward", "training reward", "best", "model", "id")
    print_table(found, columns, map(_checkpoint, found), as_json=as_json)


def _checkpoint(one: dict[str, Any]) -> tuple[Any, ...]:
    names = ("full_valid_mean_reward", "train_mean_reward")
    rewards = (short_number(one["metrics"].get(name)) for name in names)
    best = "best" if one["is_best"] else ""
    return one["step_number"], *rewards, best, one["fine_tuned_model_checkpoint"], one["id"]


def cancel(context: typer.Context, job_id: JobId, as_json: JsonFlag = False) -> None:
    """Cancel a job; its last checkpoint stays downloadable."""
    _change(context, job_id, "cancel", as_json)


def pause(context: typer.Context, job_id: JobId, as_json: JsonFlag = False) -> None:
    """Pause a job after a checkpoint; its worker is free for others."""
    _change(context, job_id, "pause", as_json)


def resume(context: typer.Context, job_id: JobId, as_json: JsonFlag = False) -> None:
    """Resume a paused job from its checkpoint."""
    _change(context, job_id, "resume", as_json)


def _change(context: typer.Context, job_id: str, verb: str, as_json: bool) -> None:
    job = client_of(context).post(f"{JOBS}/{job_id}/{verb}")
    phase = f" ({job['phase']})" if job["phase"] not in (None, "", job["status"]) else ""
    print_line(job, f"{job['id']} {job['status']}{phase}", as_json=as_json)


def _expected(estimate: dict[str, Any]) -> str | None:
    """The likely duration, and the runs that the estimate is based on."""
    seconds = estimate.get("likely_seconds")
    return f"about {duration(seconds)}, from {estimate['basis']}" if seconds else None


def method_of(job: dict[str, Any]) -> str:
    """The method's real type, because `type` may be a substitute that OpenAI's clients accept."""
    return str(job["method"].get("rule") or job["method"]["type"])


def steps(job: dict[str, Any]) -> str:
    """The steps done and their total: `3/10`."""
    return f"{job['progress']['step']}/{job['progress']['total_steps']}"


def _evaluation(row: dict[str, Any]) -> str:
    if "text" in row:
        return str(row["text"])
    for name in ("reward", "loss"):
        if row.get(name) is not None:
            return f"{name} {row[name]:.3f} at step {row.get('step')}"
    return f"no row could be scored at step {row.get('step')}"
