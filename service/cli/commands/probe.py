"""`grpo probe`: a job file tried before it trains; waits for the answer and says it.

Ctrl-C cancels the probe: without somebody who waits for its answer it is of no use.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from service.cli.commands.jobs import from_here, read_job, with_uploads
from service.cli.http.client import Client
from service.cli.options import client_of
from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import JsonFlag, duration, plain, print_fields, print_json, say, stderr

PROBES = "/v1/fine_tuning/probes"
ENDED = {"succeeded", "failed", "cancelled"}
POLL_SECONDS = 0.5
STYLES = {"yes": "green", "maybe": "yellow", "no": "red"}


def probe(
    context: typer.Context,
    job_file: Annotated[Path, typer.Argument(metavar="JOB.json", exists=True, dir_okay=False)],
    training_file: Annotated[
        str | None, typer.Option(help="Dataset to upload and take prompts from.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Sample this model.")] = None,
    prompts: Annotated[int, typer.Option(help="Prompts to try.", min=1, max=256)] = 16,
    as_json: JsonFlag = False,
) -> None:
    """Sample a job's model on some of its prompts and say whether GRPO can learn, before any training."""
    body = read_job(job_file)
    if training_file:
        body["training_file"] = from_here(training_file)
    if model:
        body["model"] = model
    with client_of(context) as client:
        body = with_uploads(client, body, job_file.parent)
        found = _awaited(client, client.create(PROBES, body | {"probe": {"prompts": prompts}}))
    if as_json:
        print_json(found)
    elif found["result"]:
        _tell(found)
    if found["status"] == "failed":
        raise CommandError(found["failure"]["message"], code=found["failure"]["code"])
    if found["status"] != "succeeded":
        raise CommandError("the probe was cancelled", code="cancelled")


def _awaited(client: Client, found: dict[str, Any]) -> dict[str, Any]:
    """The probe as it ended; its progress goes to standard error meanwhile."""
    place = f"{PROBES}/{found['id']}"
    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), MofNCompleteColumn())
    try:
        with Progress(*columns, console=stderr, transient=True) as bar:
            task = bar.add_task(plain(found["phase"]), total=None)
            while found["status"] not in ENDED:
                time.sleep(POLL_SECONDS)
                found = client.get(place)
                progress = found["progress"]
                doing = found["queue"]["reason"] or found["phase"]
                total = progress["total_steps"] or None
                bar.update(task, description=plain(doing), completed=progress["step"], total=total)
        return found
    except KeyboardInterrupt:
        client.post(f"{place}/cancel")
        raise CommandError("the probe was cancelled", code="cancelled") from None


def _tell(found: dict[str, Any]) -> None:
    result = found["result"]
    say(result["sentence"], STYLES[result["can_learn"]])
    rate = result["pass_rate"]
    print_fields(
        (
            ("completions", f"{result['completions']} of {result['prompts']} prompts"),
            ("right", None if rate is None else f"{rate:.0%}"),
            ("mean reward", None if result["mean_reward"] is None else f"{result['mean_reward']:.3f}"),
            ("groups with signal", f"{result['signal_share']:.0%}"),
            ("cut", f"{result['truncated_share']:.0%}"),
            ("not gradable", result["grader_errors"] or None),
            ("mean length", f"{result['mean_completion_tokens']:.0f} tokens"),
            ("speed", f"{result['tokens_per_second']:.0f} tokens/s"),
            ("took", duration(found["finished_at"] - found["started_at"])),
            *((advice["param"], advice["message"]) for advice in result["advice"]),
        )
    )
