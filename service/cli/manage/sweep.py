"""`grpo sweep`: one job for each combination of values, as a named group.

The jobs of a sweep have its name as the label `sweep` and their combination as the label `sweep_run`, so that
a repeated command creates only the missing ones.
"""

import hashlib
import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from service.cli.changes import patch_of
from service.cli.commands.jobs import DATASETS, read_job, with_uploads
from service.cli.http.client import JOBS, Client
from service.cli.options import JobFile, client_of
from service.cli.terminal.errors import CommandError, interruptible
from service.cli.terminal.output import JsonFlag, counted, print_json, say
from service.cli.terminal.progress import waiting

MANY = 64
MAX_LABEL = 512
ALL = 10_000
RUN_LABEL = "sweep_run"
FULL = "quota_exceeded"
FULL_SECONDS = 5.0
INTERRUPTED = "Run the same command again: it creates only the jobs that are missing."
Run = dict[str, Any]
"""The values of one job by the names that were given."""


def sweep(
    context: typer.Context,
    job_file: JobFile,
    changes: Annotated[
        list[str],
        typer.Option("--set", metavar="FIELD=A,B,…", help="Values of a field, given by its name or path."),
    ],
    name: Annotated[str | None, typer.Option(help="Name of the sweep (default: the file's name).")] = None,
    yes: Annotated[bool, typer.Option("--yes", help=f"Allow more than {MANY} jobs.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Submit a job for each combination of values, as a group; repeated, it creates only what is missing."""
    body, group = read_job(job_file), name or job_file.stem
    runs = runs_of(changes)
    if len(runs) > MANY and not yes:
        raise CommandError(
            f"{len(runs)} jobs, more than {MANY}", code="too_many_jobs", hint="--yes creates them"
        )
    bodies = [_body(body, group, run) for run in runs]  # refuses unknown fields before the first submission
    client = client_of(context)
    with interruptible(lambda: INTERRUPTED):
        submission = _Submission(client, job_file.parent, group, as_json=as_json)
        submission.check(bodies)
        made = [submission.job_of(each) for each in bodies]
    if as_json:
        print_json({"object": "sweep", "name": group, "jobs": made})
        return
    say(f"{client.url}/#/sweeps/{quote(group, safe='')}")


def runs_of(changes: Sequence[str]) -> list[Run]:
    """Every combination of the values: `["a=1,2", "b=3"]` → `[{a: 1, b: 3}, {a: 2, b: 3}]`.

    A comma inside of JSON brackets or quotes separates nothing. Raises CommandError.
    """
    names, values = [], []
    for change in changes:
        field, separator, text = change.partition("=")
        if not separator or not field:
            raise CommandError(f"--set {change}: write FIELD=A,B as in learning_rate=1e-5,3e-5")
        if field in names:
            raise CommandError(f"--set {field} is given twice: write its values in one, with commas")
        names.append(field)
        values.append(list(dict.fromkeys(_parts(text))))
    return [dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*values)]


def label_of(run: Run) -> str:
    """The combination as a label of a job: its digest if it is too long for one."""
    text = json.dumps(run, sort_keys=True, ensure_ascii=False)
    return text if len(text) <= MAX_LABEL else hashlib.sha256(text.encode()).hexdigest()


def _parts(text: str) -> list[str]:
    found, depth, is_quoted, start = [], 0, False, 0
    for place, letter in enumerate(text):
        is_quoted ^= letter == '"'
        if not is_quoted:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth and not is_quoted:
            found.append(text[start:place])
            start = place + 1
    return [*found, text[start:]]


def _body(body: dict[str, Any], group: str, run: Run) -> dict[str, Any]:
    """The request of one run. Raises CommandError for an unknown field."""
    # importing it takes a quarter of a second, which other commands save
    from service.jobs.intake.cloning import merged

    for name in ("method", "metadata"):
        if not isinstance(body.get(name) or {}, dict):
            raise CommandError(f"{name} must be an object", param=name)
    method = (body.get("method") or {}).get("type", "supervised")
    patch = patch_of([f"{field}={value}" for field, value in run.items()], method)
    shown = {field.rpartition(".")[2]: value for field, value in run.items()}
    about = ", ".join(f"{field}={value}" for field, value in shown.items())
    labels = {**(body.get("metadata") or {}), "sweep": group, RUN_LABEL: label_of(run)}
    return merged(body, patch) | {"name": f"{group}: {about}"[:128], "metadata": labels}


class _Submission:
    """Finds the jobs of one sweep that exist and creates the others."""

    def __init__(self, client: Client, folder: Path, group: str, *, as_json: bool) -> None:
        self._client, self._folder, self._as_json = client, folder, as_json
        listed = client.pages(JOBS, ALL, **{"metadata[sweep]": group})
        self._known = {job["metadata"].get(RUN_LABEL): job for job in listed}
        self._uploads: dict[str, dict[str, str]] = {}

    def check(self, bodies: Sequence[dict[str, Any]]) -> None:
        """Raises CommandError if the service would refuse one of the missing jobs."""
        missing = [body for body in bodies if body["metadata"][RUN_LABEL] not in self._known]
        with waiting(f"Checking {counted(len(missing), 'job')}…"):
            for body in missing:
                # like a create, it may be repeated
                found = self._client.create(f"{JOBS}/validate", {**body, **self._uploaded(body)})
                if found["problems"]:
                    first = found["problems"][0]
                    raise CommandError(f"{body['name']}: {first['message']}", param=first["param"])

    def job_of(self, body: dict[str, Any]) -> dict[str, Any]:
        """The run's job, which is created if it is missing."""
        known = self._known.get(body["metadata"][RUN_LABEL])
        job = known or self._created({**body, **self._uploaded(body)})
        if not self._as_json:
            say(f"{job['id']}  {body['name']}{'  (exists)' if known else ''}")
        return job

    def _uploaded(self, body: dict[str, Any]) -> dict[str, str]:
        """Ids of the datasets, each of which is uploaded once."""
        sources = {name: body[name] for name in DATASETS if body.get(name)}
        key = json.dumps(sources)
        if key not in self._uploads:
            self._uploads[key] = with_uploads(self._client, sources, self._folder)
        return self._uploads[key]

    def _created(self, body: dict[str, Any]) -> dict[str, Any]:
        """Creates a job; waits while the tenant's limit of unfinished jobs is reached."""
        while True:
            try:
                return self._client.create(JOBS, body)
            except CommandError as error:
                if error.code != FULL:
                    raise
                with waiting(f"{error.message} Waiting for a place…"):
                    time.sleep(FULL_SECONDS)
