"""`grpo logs`: what the engine of a job, probe or export printed, also while it runs."""

import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from service.cli.http.client import JOBS, POLL_SECONDS, PROBES, TERMINAL, Client
from service.cli.options import checked_id, client_of, complete_jobs
from service.cli.terminal.output import JsonFlag, print_json, say

LINES_AT_ONCE = 5000
Position = dict[str, int | None]
"""Parameter of the API: `tail` lines before the end, or those `after` a line."""


def logs(
    context: typer.Context,
    job_id: Annotated[
        str,
        typer.Argument(
            metavar="JOB", autocompletion=complete_jobs, callback=checked_id, help="A job or probe."
        ),
    ],
    export: Annotated[
        str | None, typer.Option(help="Id of one of the job's exports, instead of the job.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new lines until the job ends.")
    ] = False,
    tail: Annotated[int | None, typer.Option(help="Start this many lines before the end.", min=1)] = None,
    as_json: JsonFlag = False,
) -> None:
    """Print the output of a job's, a probe's or an export's engine in all attempts."""
    client, attempt = client_of(context), 1
    position: Position = {"tail": tail}
    path = f"{PROBES if job_id.startswith('ftprobe-') else JOBS}/{job_id}"
    path += f"/exports/{export}" if export else ""
    try:
        while True:
            is_over = not follow or client.get(path)["status"] in TERMINAL  # before reading
            for line in _lines(client, path, position):
                attempt = _print(line, attempt, as_json=as_json)
                position = {"after": line["sequence"]}
            if is_over:
                return
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        return


def _lines(client: Client, path: str, position: Position) -> Iterator[dict[str, Any]]:
    """All lines from this position."""
    has_more = True
    while has_more:
        page = client.get(f"{path}/logs", limit=LINES_AT_ONCE, **position)
        for line in page["data"]:
            yield line
            position = {"after": line["sequence"]}
        has_more = page["has_more"]


def _print(line: dict[str, Any], attempt: int, *, as_json: bool) -> int:
    """Print a line, and the number of a new attempt before its first one; returns the line's attempt."""
    if as_json:
        print_json(line)
    else:
        if line["attempt"] != attempt:
            say(f"--- attempt {line['attempt']} ---", "bold")
        say(f"[rank {line['rank']}] {line['text']}" if line["rank"] else line["text"])
    return int(line["attempt"])
