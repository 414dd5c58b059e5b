"""`grpo manifest`, `rerun`, `compare`: what decided a result, the same job again, what two jobs differ in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.commands.watch import watch_and_exit
from service.cli.http import complete
from service.cli.http.client import JOBS, Client
from service.cli.http.upload import prepared
from service.cli.options import client_of
from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import JsonFlag, print_json, print_table, say
from service.jobs.results import manifest as manifests

MAX_FILES = 10_000
JobOrFile = Annotated[str, typer.Argument(metavar="JOB|manifest.json", autocompletion=complete.jobs)]


def manifest(
    context: typer.Context,
    job_id: Annotated[str, typer.Argument(metavar="JOB", autocompletion=complete.jobs)],
) -> None:
    """Print a job's manifest as JSON: data and grader hashes, configuration, seed, versions."""
    with client_of(context) as client:
        print_json(client.get(f"{JOBS}/{job_id}/manifest"))


def compare(context: typer.Context, left: JobOrFile, right: JobOrFile, as_json: JsonFlag = False) -> None:
    """Show field by field what the manifests of two jobs differ in."""
    with client_of(context) as client:
        one, other = (_read(client, each) for each in (left, right))
    found = manifests.differences(one, other)
    if as_json:
        print_json(found)
    elif not found:
        say("Equal: the same data, rules, configuration, seed and software.")
    else:
        print_table(("field", left, right), [[row["field"], row["left"], row["right"]] for row in found])


def rerun(
    context: typer.Context,
    job: JobOrFile,
    data: Annotated[
        list[str] | None,
        typer.Option(help="Dataset that the service no longer has; uploaded if its content is the same."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Watch it to the end.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Submit the same job again: same data by its SHA-256, same configuration, same seed."""
    with client_of(context) as client:
        found = _read(client, job)
        if manifests.hides_secrets(found):
            hint = "send the job itself again, with the headers of its graders and tools"
            raise CommandError("its manifest hides the values of headers", code="secrets_hidden", hint=hint)
        body = manifests.request_of(found, _file_ids(client, found, data or []))
        created = client.create(JOBS, body)
        if as_json:
            print_json(created)
        else:
            say(created["id"])
        if watch:
            watch_and_exit(client, created["id"], as_json=as_json)


def _read(client: Client, job: str) -> dict[str, Any]:
    """Of a job, or as it lies beside the weights."""
    if not job.endswith(".json"):
        return client.get(f"{JOBS}/{job}/manifest")
    try:
        found = json.loads(Path(job).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CommandError(f"{job} is not JSON: {error}") from error
    if not isinstance(found, dict) or found.get("format") != manifests.FORMAT or "method" not in found:
        raise CommandError(f"{job} is no manifest of a job")
    return found


def _file_ids(client: Client, manifest: dict[str, Any], sources: list[str]) -> dict[str, str]:
    """SHA-256 → id of a stored file with that content. Raises CommandError where there is none."""
    from service.platform.storage import sha256_file

    wanted = {file["sha256"]: name for name, file in manifest["data"].items()}
    found = {}
    for source in sources:
        with prepared(source) as path:
            if sha256_file(path) in wanted:
                file = client.upload(path)
                found[file["sha256"]] = file["id"]
    if wanted.keys() - found.keys():
        stored = client.pages("/v1/files", MAX_FILES, purpose="fine-tune")
        found = {file["sha256"]: file["id"] for file in stored if file["sha256"] in wanted} | found
    for sha256, name in wanted.items():
        if sha256 not in found:
            hint = "give the dataset with --data PATH: it is uploaded again if its content is the same"
            message = f"{name} is gone: no stored file has sha256 {sha256}"
            raise CommandError(message, code="data_gone", param=name, hint=hint)
    return found
