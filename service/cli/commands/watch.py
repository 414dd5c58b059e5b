"""`grpo watch`: a job live, from its event stream: bar, reward, KL, tokens a second, warnings.

The stream ends with the job. Ctrl-C only stops watching.
"""

import re
import time
from collections.abc import Iterator
from typing import Any

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from service.cli.http.client import JOBS, Client
from service.cli.http.sse import StreamEvent, follow
from service.cli.options import JobId, client_of
from service.cli.terminal.errors import CommandError, place_of
from service.cli.terminal.output import JsonFlag, console, excerpt, literal, plain, print_json, say
from service.cli.terminal.pace import Pace, Times

LINE_SECONDS = 2.0
"""Shortest time between two lines of metrics if the output is not a terminal."""
SHOWN = (
    ("reward", "reward", ".3f"),
    ("loss", "loss", ".4f"),
    ("mean_token_accuracy", "accuracy", ".3f"),
    ("kl", "KL", ".4f"),
    ("completions/mean_length", "length", ".0f"),
    ("perf/sampled_tokens_per_second", "sampled/s", ".0f"),
    ("perf/trained_tokens_per_second", "trained/s", ".0f"),
)
_UNSCORED = re.compile(r"(eval/)?(rewards/.+/error_rate|environments/.+/failure_rate)|eval/error_rate")
"""Metrics with the share of unscored completions."""
_UNANSWERED = "rollout"
"""Part whose error says why there is no completion, as in `grpo_engine.rollout.scoring`."""
MAX_ERRORS = 5
"""Maximum number of different reasons for unscored completions that are shown."""
ERRORS_OF_A_STEP = 20
MAX_ERROR_REQUESTS = 20
"""Maximum number of steps whose unscored completions are requested."""
STYLES = {"warn": "yellow", "error": "red"}


class _WithValues(Progress):
    """The bar and a line of metrics below it; both fit 80 columns."""

    values = ""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield from super().get_renderables()
        if self.values:
            yield Text(self.values, no_wrap=True, overflow="ellipsis")


class Bar:
    """Two live lines at the bottom of a terminal; messages scroll above them."""

    def __init__(self, job: dict[str, Any], console: Console) -> None:
        self.pace = Pace(job)
        self._progress = _WithValues(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            Times(self.pace),
            console=console,
        )
        progress = job["progress"]
        self._task = self._progress.add_task(
            plain(job["phase"] or job["status"]),
            total=progress["total_steps"] or None,
            completed=progress["step"],
        )
        self._progress.start()

    def metrics(self, values: dict[str, Any]) -> None:
        self.pace.reach(values["step"], values.get("total_steps"))
        self._progress.values = summary(values)
        self._progress.update(self._task, completed=values["step"], total=values.get("total_steps"))

    def message(self, text: str, level: str) -> None:
        self._progress.console.print(literal(text, STYLES.get(level, "")))

    def status(self, status: str, phase: str) -> None:
        if status == "running":
            self.pace.start()
        self._progress.update(self._task, description=plain(phase or status))

    def close(self) -> None:
        self._progress.stop()


class Lines:
    """Output for logs and pipes: one line after another, metrics at a readable rate."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown_at = 0.0
        self._waiting: str | None = None

    def metrics(self, values: dict[str, Any]) -> None:
        self._waiting = f"step {values['step']}/{values.get('total_steps', '?')}  {summary(values)}"
        if time.monotonic() - self._shown_at >= LINE_SECONDS:
            self._flush()

    def message(self, text: str, level: str) -> None:
        self._flush()
        prefix = "" if level == "info" else f"{level}: "
        self._console.print(literal(prefix + text), soft_wrap=True)

    def status(self, status: str, phase: str) -> None:
        self.message(status if phase in ("", status) else f"{status}: {phase}", "info")

    def close(self) -> None:
        self._flush()

    def _flush(self) -> None:
        if self._waiting is not None:
            self._console.print(literal(self._waiting), soft_wrap=True)
            self._waiting, self._shown_at = None, time.monotonic()


def summary(values: dict[str, Any]) -> str:
    """`reward 0.412  KL 0.0031 …` of the metrics that are present."""
    return "  ".join(f"{label} {values[name]:{form}}" for name, label, form in SHOWN if name in values)


def watch(context: typer.Context, job_id: JobId, as_json: JsonFlag = False) -> None:
    """Watch a job live. Ctrl-C stops watching; the job continues."""
    watch_and_exit(client_of(context), job_id, as_json=as_json)


def watch_and_exit(client: Client, job_id: str, *, as_json: bool) -> None:
    """Watches to the end; exit code 1 if the job did not succeed."""
    try:
        job = watch_job(client, job_id, as_json=as_json)
    except KeyboardInterrupt:
        if not as_json:
            say(f"\nStopped watching; the job continues. `grpo cancel {job_id}` ends it.")
        return
    if job["status"] != "succeeded":
        raise typer.Exit(1)


class GraderErrors:
    """Why completions could not be scored: each reason once, from the first step that reports one."""

    def __init__(self, client: Client, job_id: str) -> None:
        self._client, self._path = client, f"{JOBS}/{job_id}/rollouts/completions"
        self._shown: set[tuple[str, str]] = set()
        self._requests = 0

    def found(self, metrics: dict[str, Any]) -> Iterator[str]:
        """A message for each new reason, with the row, the grader's error and the completion."""
        rates = [value for name, value in metrics.items() if _UNSCORED.fullmatch(name)]
        if not any(rates) or self._requests == MAX_ERROR_REQUESTS:
            return
        self._requests += 1
        split = "validation" if any(name.startswith("eval/") for name in metrics) else "train"
        selection = {"filter": "grader_error", "step": metrics["step"], "split": split}
        try:
            unscored = self._client.get(self._path, **selection, limit=ERRORS_OF_A_STEP)["data"]
        except CommandError:
            return  # a help only; the stream itself outlasts an outage of the service
        for one in unscored:
            for part, error in one["errors"].items():
                reason = error["message"].rstrip()
                key = (part, reason.rpartition("\n")[2])
                if key not in self._shown and len(self._shown) < MAX_ERRORS:
                    self._shown.add(key)
                    place = f"step {one['step']}, row {one['row'] + 1}"
                    yield _unscored(part, place, error["code"], reason)
                    if one["text"]:
                        yield f"the completion: {excerpt(one['text'])}"


def _unscored(part: str, place: str, code: str, reason: str) -> str:
    if part == _UNANSWERED:
        return f"a session failed ({place}): {reason}"
    return f"{part} could not score a completion ({place}): {code}\n{reason}"


def watch_job(client: Client, job_id: str, *, as_json: bool = False) -> dict[str, Any]:
    """Shows the stream until the job has finished; returns the finished job."""
    job = client.get(f"{JOBS}/{job_id}")
    if as_json:
        for event in follow(client, job_id):
            print_json({"id": event.id, "event": event.name, "data": event.data})
        return client.get(f"{JOBS}/{job_id}")
    display = Bar(job, console) if console.is_terminal else Lines(console)
    errors = GraderErrors(client, job_id)
    try:
        for event in follow(client, job_id):
            show(event, display)
            if event.name == "status" and event.data["status"] == "paused":
                display.message(f"`grpo resume {job_id}` continues it.", "info")
            for text in errors.found(event.data) if event.name == "metrics" else ():
                display.message(text, "warn")
    finally:
        display.close()
    job = client.get(f"{JOBS}/{job_id}")
    _conclude(job)
    return job


def show(event: StreamEvent, display: Bar | Lines) -> None:
    """Shows one event of the stream."""
    data = event.data
    if event.name == "status":
        display.status(data["status"], data.get("phase") or "")
    elif event.name != "metrics":
        display.message(data["message"], data["level"])
    elif evaluated := {name.removeprefix("eval/"): v for name, v in data.items() if name.startswith("eval/")}:
        display.message(f"Held-out rows after step {data['step']}: {summary(evaluated)}", "info")
    else:
        display.metrics(data)


def _conclude(job: dict[str, Any]) -> None:
    say(f"{job['id']} {job['status']}", "green" if job["status"] == "succeeded" else "red")
    if job.get("fine_tuned_model"):
        say(f"Model: {job['fine_tuned_model']}")
    if failure := job.get("failure"):
        say(f"{failure['code']}: {failure['message']}\n{failure['hint']}")
        for evidence in dict.fromkeys(map(str, failure.get("evidence", []))):
            say(evidence)
        say(f"See {place_of(failure['code'], is_failure=True)}")
