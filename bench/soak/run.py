"""Runs jobs while API, workers, engines, Redis and PostgreSQL are killed at random.

    python -m bench.soak.run [--minutes 10] [--gap 5 40] [--seed 1]

Fake and real engines train in one production deployment on this machine. The exit code is 0 if every
submitted job has succeeded, the audit finds nothing, every adapter equals that of an undisturbed run, and no
process is left. Writes `bench/results/soak.json`.
Boundary: processes are killed by `monkey.py`; the load retries requests without a response.
"""

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from bench.machine import machine_name
from bench.soak.monkey import Monkey
from examples.tiny_model import make_model
from service.cli.http.client import JOBS, Client
from service.jobs.results import evidence
from service.platform.db import Database, connect
from service.platform.storage import open_storage
from service.platform.tables.core import Job
from service.settings import Settings
from tests.e2e.production.deployment import Production, production
from tests.service.embedded import grpo_job, processes_of, write_rows
from tests.support.servers import Postgres, Redis, wait_until

RESULTS = Path(__file__).parents[1] / "results" / "soak.json"
SETTINGS = {
    "GRPO_ENGINE_MODULE": "tests.support.either_engine",
    "GRPO_LEASE_SECONDS": "12",
    "GRPO_SELF_FENCE_SECONDS": "8",
    "GRPO_HEARTBEAT_SECONDS": "1",
    "GRPO_SWEEP_SECONDS": "1",
    "GRPO_RETRY_BACKOFF_SECONDS": "0.5",
    "GRPO_MAX_ATTEMPTS_WITHOUT_CHECKPOINT": "20",  # killed attempts must not fail the job
    "GRPO_MAX_QUEUED_JOBS": "100000",
}
FAKE_STEPS, REAL_STEPS = 200, 12
END_SECONDS = 600
PAUSE_SECONDS = 1.0
TERMINAL = ("succeeded", "failed", "cancelled")


@dataclass
class Load:
    """Submits jobs. Each request is retried with the same idempotency key until there is a response."""

    url: str
    key: str
    files: dict[str, str]
    """Kind of engine → training file."""
    num_queued: int = 3
    submitted: dict[str, str] = field(default_factory=dict)
    """Job → kind of engine."""
    num_retries: int = 0

    def run_until(self, stopping: threading.Event) -> None:
        """Keep a few jobs unfinished at any time; every fourth uses the real engine."""
        number = 0
        while not stopping.is_set():
            if self._num_unfinished() < self.num_queued:
                number += 1
                kind = "real" if number % 4 == 1 else "fake"
                self.submitted[self._submit(kind, f"soak-{number}")] = kind
            stopping.wait(PAUSE_SECONDS)

    def _submit(self, kind: str, key: str) -> str:
        steps = {"fake": FAKE_STEPS, "real": REAL_STEPS}[kind]
        body = grpo_job(self.files[kind], steps=steps)
        headers = {"Idempotency-Key": key}
        return str(self.request("POST", JOBS, json=body, headers=headers)["id"])

    def _num_unfinished(self) -> int:
        jobs = self.request("GET", JOBS, params={"limit": 100})["data"]
        return sum(job["status"] not in TERMINAL for job in jobs)

    def request(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """Send a request until there is a response. Raises HTTPStatusError if the request is wrong."""
        headers = {"Authorization": f"Bearer {self.key}"} | options.pop("headers", {})
        while True:
            try:
                answer = httpx.request(method, self.url + path, headers=headers, timeout=20, **options)
            except httpx.TransportError:
                answer = None  # the API was killed meanwhile, or is not restarted yet; retried below
            if answer is not None and answer.status_code < 500:
                return dict(answer.raise_for_status().json())
            self.num_retries += 1
            time.sleep(PAUSE_SECONDS)


def soak(minutes: float, gap: tuple[float, float], seed: int) -> dict[str, Any]:
    """Run once; returns the figures."""
    with tempfile.TemporaryDirectory(prefix="grpo-soak-") as folder, ExitStack() as stack:
        home = Path(folder) / "home"
        model = make_model(Path(folder) / "tiny", hidden=32, layers=1, seed=1)
        postgres, redis = stack.enter_context(Postgres()), stack.enter_context(Redis())
        deployment = stack.enter_context(production(home, model, postgres.url, redis, **SETTINGS))
        deployment.start("worker", "second worker")
        load = open_load(deployment, Path(folder))
        expected = undisturbed(deployment, load)
        monkey = Monkey(deployment, postgres, redis, random.Random(seed), gap)
        run(load, monkey, minutes * 60)
        wait_until(lambda: load.request("GET", "/readyz")["status"] == "ready", 120, "all is up again")
        seconds = settle(load)
        figures = judge(deployment, load, monkey, expected) | {"seconds_to_settle": round(seconds, 1)}
    return figures | {"left_processes": len(processes_of(home))}


def open_load(deployment: Production, folder: Path) -> Load:
    """Upload the datasets; submits no job."""
    rows = {"fake": write_rows(folder / "fake.jsonl", faults={"step_seconds": 0.01})}
    rows["real"] = write_rows(folder / "real.jsonl", num_rows=64)
    key = deployment.key()
    with Client(deployment.url, key) as client:
        return Load(deployment.url, key, {kind: client.upload(path)["id"] for kind, path in rows.items()})


def undisturbed(deployment: Production, load: Load) -> dict[str, str]:
    """Kind of engine → sha256 of the adapter of an undisturbed job."""
    found = {}
    for kind in load.files:
        job_id = load._submit(kind, f"undisturbed-{kind}")
        wait_until(partial(is_over, load, job_id), 120, f"an undisturbed {kind} job")
        found[kind] = adapter_of(load, job_id)
    return found


def is_over(load: Load, job_id: str) -> bool:
    return load.request("GET", f"{JOBS}/{job_id}")["status"] in TERMINAL


def adapter_of(load: Load, job_id: str) -> str:
    """The adapter's sha256; empty if there is none."""
    artifacts = load.request("GET", f"{JOBS}/{job_id}")["artifacts"]
    return next((str(each["sha256"]) for each in artifacts if each["kind"] == "adapter"), "")


def run(load: Load, monkey: Monkey, seconds: float) -> None:
    """Run load and monkey together; when this returns, every process runs again."""
    stopping = threading.Event()
    client = threading.Thread(target=load.run_until, args=(stopping,), name="load")
    client.start()
    monkey.run_for(seconds)
    stopping.set()
    client.join()


def settle(load: Load) -> float:
    """Wait until every submitted job has ended; returns the seconds that it took. Raises TimeoutError."""
    start = time.monotonic()
    for job_id in load.submitted:
        wait_until(partial(is_over, load, job_id), END_SECONDS, f"{job_id} is over")
    return time.monotonic() - start


def judge(deployment: Production, load: Load, monkey: Monkey, expected: dict[str, str]) -> dict[str, Any]:
    """Outcomes of the jobs, from the API, the database and the storage."""
    settings = Settings.model_validate(
        {"home": deployment.home, "database_url": deployment.environment["GRPO_DATABASE_URL"]}
        | {"storage_url": deployment.environment["GRPO_STORAGE_URL"]}
    )
    database = connect(settings)
    states = {job_id: load.request("GET", f"{JOBS}/{job_id}")["status"] for job_id in load.submitted}
    others = [
        job_id
        for job_id, kind in load.submitted.items()
        if states[job_id] == "succeeded" and adapter_of(load, job_id) != expected[kind]
    ]
    figures = {
        "jobs_submitted": len(load.submitted),
        "jobs_stored": len(evidence.job_ids(database)) - len(expected),
        "jobs_succeeded": sum(state == "succeeded" for state in states.values()),
        "real_jobs": sum(kind == "real" for kind in load.submitted.values()),
        "attempts": num_attempts(database),
        "client_retries": load.num_retries,
        "kills": dict(sorted(monkey.kills.items())),
        "violations": violations(database, settings),
        "other_adapters": others,
    }
    database.engine.dispose()
    return figures


def num_attempts(database: Database) -> int:
    with database.reading() as session:
        return sum(job.attempt for job in session.query(Job))


def violations(database: Database, settings: Settings) -> list[str]:
    """The audit's findings for all jobs."""
    storage = open_storage(settings.storage_location)
    limit = int(SETTINGS["GRPO_MAX_ATTEMPTS_WITHOUT_CHECKPOINT"])
    return [
        f"{job_id}: {each.rule}: {each.message}"
        for job_id in evidence.job_ids(database)
        for each in evidence.audit_job(database, storage, job_id, max_failures=limit)
    ]


def is_sound(figures: dict[str, Any]) -> bool:
    """Whether no job was lost or changed, the audit found nothing, and no process is left."""
    counts = {figures[name] for name in ("jobs_submitted", "jobs_stored", "jobs_succeeded")}
    is_clean = not (figures["violations"] or figures["other_adapters"] or figures["left_processes"])
    return len(counts) == 1 and is_clean


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak.run", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--gap", type=float, nargs=2, default=(5.0, 40.0), help="seconds between two kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    figures = soak(given.minutes, tuple(given.gap), given.seed)
    about: dict[str, Any] = {"machine": machine_name(), "at": datetime.now(UTC).isoformat(timespec="seconds")}
    about |= {"minutes": given.minutes, "gap_seconds": list(given.gap), "seed": given.seed}
    result = about | figures | {"is_sound": is_sound(figures)}
    given.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))
    return 0 if result["is_sound"] else 1


if __name__ == "__main__":
    sys.exit(main())
