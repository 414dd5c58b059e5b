"""`grpo manifest`, `rerun`, `compare`: show what determined a result, repeat a job, compare two jobs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from grpo_engine.contract.manifest import sha256_of
from service.cli.commands.jobs import create_job, read_job
from service.cli.http.client import JOBS, Client
from service.cli.http.upload import prepared
from service.cli.options import JobId, Watch, client_of, complete_jobs
from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import JsonFlag, print_json, print_line, print_table
from service.jobs.results import manifest as manifests

MAX_FILES = 10_000
JobOrFile = Annotated[str, typer.Argument(metavar="JOB|manifest.json", autocompletion=complete_jobs)]


def manifest(context: typer.Context, job_id: JobId) -> None:
    """Print a job's manifest as JSON: data and grader hashes, configuration, seed, versions."""
    print_json(client_of(context).get(f"{JOBS}/{job_id}/manifest"))


def compare(context: typer.Context, left: JobOrFile, right: JobOrFile, as_json: JsonFlag = False) -> None:
    """Show the fields in which the manifests of two jobs differ."""
    client = client_of(context)
    found = manifests.differences(_read(client, left), _read(client, right))
    if found:
        rows = ((row["field"], row["left"], row["right"]) for row in found)
        print_table(found, ("field", left, right), rows, as_json=as_json)
    else:
        print_line(found, "Equal: the same data, rules, configuration, seed and software.", as_json=as_json)


def rerun(
    context: typer.Context,
    job: JobOrFile,
    data: Annotated[
        list[str] | None,
        typer.Option(help="Dataset that the service no longer has; uploaded if its content is the same."),
    ] = None,
    watch: Watch = False,
    as_json: JsonFlag = False,
) -> None:
    """Submit the same job again: same data by its SHA-256, same configuration, same seed."""
    client = client_of(context)
    found = _read(client, job)
    if manifests.hides_secrets(found):
        hint = "submit the original job file again, which has the headers of its graders and tools"
        raise CommandError("the manifest hides the values of headers", code="secrets_hidden", hint=hint)
    body = manifests.request_of(found, _file_ids(client, found, data or []))
    create_job(client, JOBS, body, watch=watch, as_json=as_json)


def _read(client: Client, job: str) -> dict[str, Any]:
    """The manifest of a job, or the one in a file. Raises CommandError."""
    if not job.endswith(".json"):
        return client.get(f"{JOBS}/{job}/manifest")
    found = read_job(Path(job))
    if found.get("format") != manifests.FORMAT or "method" not in found:
        raise CommandError(f"{job} is not a job's manifest")
    return found


def _file_ids(client: Client, manifest: dict[str, Any], sources: list[str]) -> dict[str, str]:
    """SHA-256 → id of a stored file with that content. Raises CommandError if there is none."""
    wanted = {file["sha256"]: name for name, file in manifest["data"].items()}
    found = {}
    for source in sources:
        with prepared(source) as path:
            if sha256_of(path) in wanted:
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
