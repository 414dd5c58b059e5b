"""Measures the time from POST to a job's first step, with and without a warm engine, over HTTP.

    python -m bench.service.warm_start [--repeats 5] [--rows 2000]

There are two embedded services, of which one keeps an engine warm. Jobs alternate between them and run alone.
The times come from the service's records: `claim` is the row's `started_at`, the others are the engine's
events. Prints medians in seconds as one JSON document.
Left out: models other than the demo's; a larger model takes longer to load, warm or cold.
"""

import argparse
import json
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from transformers.utils import logging

from examples.arithmetic import make_rows, write_jsonl
from examples.demo import embedded
from examples.tiny_model import make_model
from service.cli.http.client import JOBS, Client

T = TypeVar("T")
PATIENCE_SECONDS = 120
QUIET_SECONDS = 1.0
"""A warm engine that has used no CPU for this long has loaded everything."""


@dataclass(frozen=True, slots=True)
class Start:
    """The start of one job: seconds from the POST's response to the claim, all others from the claim."""

    claim: float
    engine: float
    """The engine's first event, after it has read the configuration."""
    model: float
    """The time when weights and rows are loaded."""
    first_step_begins: float
    first_step_ends: float


@contextmanager
def service(home: Path, *, warm: bool) -> Iterator[Client]:
    """An embedded service with the demo's model."""
    make_model(home / "models" / "tiny")
    os.environ["GRPO_WARM_ENGINE"] = str(int(warm))
    with embedded(home) as client:
        yield client


def body(training_file: str) -> dict[str, Any]:
    """The demo's GRPO job without evaluations, so that it starts with the first step."""
    hyperparameters = {"group_size": 8, "prompts_per_step": 32, "n_steps": 10_000, "max_completion_tokens": 6}
    method = {
        "grader": {"type": "numeric", "reference": "{{item.answer}}"},
        "hyperparameters": hyperparameters | {"max_skipped_steps": 10_000},
    }
    return {
        "model": "tiny",
        "training_file": training_file,
        "method": {"type": "reinforcement", "reinforcement": method},
    }


def measure(home: Path, client: Client, training_file: str) -> Start:
    """Run a job until its first step has ended, then cancel it."""
    job_id = client.create(JOBS, body(training_file))["id"]
    posted_at = time.time()
    events = until(lambda: first_events(home / "runs" / job_id / "1" / "events.jsonl"), "the first step")
    client.create(f"{JOBS}/{job_id}/cancel", {})
    until(lambda: client.get(f"{JOBS}/{job_id}")["status"] == "cancelled", "the end of the job")
    claimed_at = claim_time(home / "grpo.db", job_id)
    return Start(claimed_at - posted_at, *(at - claimed_at for at in events))


def first_events(path: Path) -> tuple[float, ...] | None:
    """Times of the engine's first event, of its load, and of the start and end of the first step; None: not
    yet."""
    found: dict[str, float] = {}
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    for event in map(json.loads, lines):
        found.setdefault(f"{event['type']} {event.get('phase', '')}".strip(), event["at"])
    ended = found.get("step_finished", found.get("step_skipped"))
    if ended is None:
        return None
    return found["phase loading"], found["started"], found["phase training"], ended


def claim_time(database: Path, job_id: str) -> float:
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        (found,) = connection.execute("SELECT started_at FROM jobs WHERE id = ?", [job_id]).fetchone()
        return float(found)
    finally:
        connection.close()


def waits_quietly() -> bool:
    """Whether all warm engines of this machine have finished loading."""
    before = waiting_ticks()
    time.sleep(QUIET_SECONDS)
    return bool(before) and before == waiting_ticks()


def waiting_ticks() -> dict[str, str]:
    """CPU time of each warm engine, by process id."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_ahead = b"--warm" in (folder / "cmdline").read_bytes().split(b"\0")
            if is_ahead and (folder / "cwd").readlink() == Path("/"):
                found[folder.name] = " ".join((folder / "stat").read_text().rpartition(")")[2].split()[11:13])
        except OSError:
            continue
    return found


def until(condition: Callable[[], T | None], what: str) -> T:
    """Wait for the first true result and return it. Raises TimeoutError."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"timed out waiting for {what}")
        time.sleep(0.01)
    return found


def medians(starts: list[Start]) -> dict[str, float]:
    columns = [asdict(start) for start in starts]
    return {name: round(statistics.median(row[name] for row in columns), 3) for name in columns[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="jobs of each kind")
    parser.add_argument("--rows", type=int, default=2000, help="of the dataset")
    options = parser.parse_args()
    logging.disable_progress_bar()
    found: dict[str, list[Start]] = {"cold": [], "warm": []}
    with (
        tempfile.TemporaryDirectory(prefix="grpo-warm-", ignore_cleanup_errors=True) as folder,
        ExitStack() as stack,
    ):
        rows = write_jsonl(Path(folder) / "rows.jsonl", make_rows(options.rows, 1, seed=1)[0])
        homes = {name: Path(folder) / name for name in found}
        clients = {
            name: stack.enter_context(service(home, warm=name == "warm")) for name, home in homes.items()
        }
        files = {name: client.upload(rows)["id"] for name, client in clients.items()}
        for _ in range(options.repeats):
            for name, starts in found.items():
                until(waits_quietly, "a quiet machine")
                starts.append(measure(homes[name], clients[name], files[name]))
    figures = {name: medians(starts) for name, starts in found.items()}
    print(json.dumps({"seconds": figures, "repeats": options.repeats, "rows": options.rows}, indent=2))


if __name__ == "__main__":
    main()
