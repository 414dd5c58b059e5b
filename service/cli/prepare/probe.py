"""`grpo probe`: tries a job's prompts before training, waits for the result and prints it.

Ctrl-C cancels the probe.
"""

from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from service.cli.commands.jobs import body_of
from service.cli.http.client import PROBES, Client
from service.cli.options import JobFile, client_of
from service.cli.terminal.errors import CommandError, failed
from service.cli.terminal.output import (
    JsonFlag,
    counted,
    duration,
    plain,
    print_fields,
    print_json,
    say,
    stderr,
)

STYLES = {"yes": "green", "maybe": "yellow", "no": "red"}


def probe(
    context: typer.Context,
    job_file: JobFile,
    training_file: Annotated[
        str | None, typer.Option(help="Dataset to upload and take prompts from.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Sample this model.")] = None,
    prompts: Annotated[int, typer.Option(help="Prompts to try.", min=1, max=256)] = 16,
    as_json: JsonFlag = False,
) -> None:
    """Sample a job's model on some of its prompts to see, before any training, whether GRPO can learn."""
    client = client_of(context)
    body = body_of(client, job_file, {"training_file": training_file}, model)
    found = _awaited(client, client.create(PROBES, body | {"probe": {"prompts": prompts}}))
    if as_json:
        print_json(found)
    elif found["result"]:
        _print_result(found)
    if found["status"] == "failed":
        raise failed(found, f"grpo logs {found['id']}")
    if found["status"] != "succeeded":
        raise CommandError("the probe was cancelled", code="cancelled")


def _awaited(client: Client, found: dict[str, Any]) -> dict[str, Any]:
    """The finished probe; its progress is shown on standard error meanwhile."""
    place = f"{PROBES}/{found['id']}"
    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), MofNCompleteColumn())
    with Progress(*columns, console=stderr, transient=True) as bar:
        task = bar.add_task(plain(found["phase"]), total=None)

        def show(now: dict[str, Any]) -> None:
            doing, progress = now["queue"]["reason"] or now["phase"], now["progress"]
            total = progress["total_steps"] or None
            bar.update(task, description=plain(doing), completed=progress["step"], total=total)

        try:
            return client.awaited(place, found, show)
        except KeyboardInterrupt:
            client.post(f"{place}/cancel")
            raise CommandError("the probe was cancelled", code="cancelled") from None


def _print_result(found: dict[str, Any]) -> None:
    result = found["result"]
    say(result["sentence"], STYLES[result["can_learn"]])
    rate, greedy = result["pass_rate"], result["greedy_pass_rate"]
    print_fields(
        (
            ("completions", f"{result['completions']} of {counted(result['prompts'], 'prompt')}"),
            (f"right at temperature {result['temperature']:g}", None if rate is None else f"{rate:.0%}"),
            ("right, greedy", None if greedy is None else f"{greedy:.0%}"),
            ("mean reward", None if result["mean_reward"] is None else f"{result['mean_reward']:.3f}"),
            ("groups with signal", f"{result['signal_share']:.0%}"),
            ("truncated", f"{result['truncated_share']:.0%}"),
            ("not scored", result["grader_errors"] or None),
            ("mean length", f"{result['mean_completion_tokens']:.0f} tokens"),
            ("turns", None if result["mean_turns"] is None else f"{result['mean_turns']:.1f} an episode"),
            ("speed", f"{result['tokens_per_second']:.0f} tokens/s"),
            ("took", duration(found["finished_at"] - found["started_at"])),
            *((advice["param"], advice["message"]) for advice in result["advice"]),
        )
    )
