"""`grpo logs`: what the engine of a job, probe or export printed, also while it runs."""

import time
from typing import Annotated, Any

import typer

from service.cli.http.client import JOBS, POLL_SECONDS, PROBES, TERMINAL, Client
from service.cli.options import checked_id, client_of, complete_jobs
from service.cli.terminal.output import JsonFlag, print_json, say

LINES_AT_ONCE = 5000


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
    client, start, attempt = client_of(context), {"tail": tail}, 1
    path = f"{PROBES if job_id.startswith('ftprobe-') else JOBS}/{job_id}"
    path += f"/exports/{export}" if export else ""
    try:
        while True:
            is_over = not follow or client.get(path)["status"] in TERMINAL  # before reading
            for line in _lines(client, path, start):
                attempt = _print(line, attempt, as_json=as_json)
            if is_over:
                return
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        return


def _lines(client: Client, path: str, start: dict[str, int | None]) -> Any:
    """All lines from `start`; afterwards `start` is the position after the last one."""
    has_more = True
    while has_more:
        page = client.get(f"{path}/logs", limit=LINES_AT_ONCE, **start)
        yield from page["data"]
        has_more = page["has_more"]
        if page["data"]:
            start.clear()
            start["after"] = page["data"][-1]["sequence"]


def _print(line: dict[str, Any], attempt: int, *, as_json: bool) -> int:
    """Print a line, and the number of a new attempt before its first one; returns the line's attempt."""
    if as_json:
        print_json(line)
    else:
        if line["attempt"] != attempt:
            say(f"--- attempt {line['attempt']} ---", "bold")
        say(f"[rank {line['rank']}] {line['text']}" if line["rank"] else line["text"])
    return int(line["attempt"])
