"""`grpo diagnose` and `grpo retry`: show why a job failed or learns poorly, and repeat it with a change."""

import json
import shlex
from collections.abc import Iterator, Mapping
from textwrap import indent
from typing import Annotated, Any

import typer

from service.cli.changes import patch_of
from service.cli.commands.jobs import create_job, method_of
from service.cli.http.client import JOBS
from service.cli.options import JobId, Watch, client_of
from service.cli.terminal.output import JsonFlag, print_json, say

STYLES = {"error": "red", "warning": "yellow", "info": ""}


def diagnose(context: typer.Context, job_id: JobId, as_json: JsonFlag = False) -> None:
    """Show why a job failed or learns poorly, and what to change."""
    found = client_of(context).get(f"{JOBS}/{job_id}/diagnosis")
    if as_json:
        print_json(found)
        return
    say(f"{job_id} {found['status']} at step {found['step']}: {found['summary']}")
    for finding in found["findings"]:
        _show(job_id, finding)


def _show(job_id: str, finding: dict[str, Any]) -> None:
    say(f"\n{finding['severity']}: {finding['cause']} [{finding['code']}]", STYLES[finding["severity"]])
    for line in finding["evidence"]:
        say(indent(line, "  "))
    if finding["advice"]:
        say(f"  {finding['advice']}")
    if finding["patch"] is not None:
        say(f"  {_retry_command(job_id, finding['patch'])}")
    elif finding["field"]:
        say(f"  Change {finding['field']}.")


def _retry_command(job_id: str, patch: Mapping[str, Any]) -> str:
    changes = [f"--set {shlex.quote(f'{path}={json.dumps(value)}')}" for path, value in _leaves(patch)]
    return " ".join(["grpo retry", job_id, *changes])


def _leaves(patch: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in patch.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def retry(
    context: typer.Context,
    job_id: JobId,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="FIELD=VALUE", help="Change a field: its name, or its place in the request."
        ),
    ] = None,
    watch: Watch = False,
    as_json: JsonFlag = False,
) -> None:
    """Create a job again: same request and seed, except for what --set changes (null removes a field)."""
    client, patch = client_of(context), {}
    if changes:
        patch = patch_of(changes, method_of(client.get(f"{JOBS}/{job_id}")))
    create_job(client, f"{JOBS}/{job_id}/clone", patch, watch=watch, as_json=as_json)
