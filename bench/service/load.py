"""Measures the service under load with real PostgreSQL: life-cycles, POST, poll, list, metrics, live streams.

    python -m bench.service.load [--jobs 100000] [--workers 1000] [--streams 1500] [--seconds 20] [--quick]

Prints each figure with its mark and writes all to `bench/results/service.json`. Exit code 1 if a mark is
missed. This process sends the load; the API and the workers run in their own processes.
Boundary: no engine, no broker and only one dataset; measures the database and HTTP.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.service.client import Answer, Call, Client, figures_of, open_loop
from bench.service.deployment import (
    DATASET_ROWS,
    PATH,
    Api,
    Deployment,
    deployed,
    job_request,
    serving,
    settle,
    store_jobs,
    upload_dataset,
)
from bench.service.life_cycles import measure_life_cycles
from bench.service.metrics import measure_metrics
from bench.service.streams import measure_streams

UNSEEN_POSTS = 5
Figures = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Size:
    """The amount of load and the number of API processes; streams and metrics use one."""

    jobs: int = 100_000
    workers: int = 1000
    streams: int = 1500
    metric_rows: int = 10_000
    rate: float = 100.0
    seconds: float = 20.0
    processes: int = 2


QUICK = Size(jobs=60, workers=20, streams=10, metric_rows=50, rate=20.0, seconds=1.0, processes=1)


@dataclass(frozen=True)
class Mark:
    """A figure and its limit."""

    scenario: str
    figure: str
    limit: float
    is_least: bool = False

    def is_met(self, figures: Mapping[str, Mapping[str, float]]) -> bool:
        value = figures[self.scenario][self.figure]
        return value >= self.limit if self.is_least else value < self.limit

    def __str__(self) -> str:
        return f"{'at least' if self.is_least else 'below'} {self.limit:g}"


MARKS = (
    Mark("life_cycles", "life_cycles_per_second", 1000, is_least=True),
    Mark("streams", "streams", 1500, is_least=True),
    Mark("metrics", "rows", 10_000, is_least=True),
    Mark("post", "p99_ms", 100),
    Mark("poll", "p99_ms", 30),
    Mark("list", "p99_ms", 30),
    Mark("poll_queued", "p99_ms", 30),
    Mark("list_queued", "p99_ms", 30),
)


def measure(size: Size) -> Figures:
    """Run every scenario on a temporary deployment."""
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as folder, deployed(Path(folder)) as deployment:
        with serving(deployment, size.processes) as api:
            training_file = upload_dataset(deployment, api)
            job_ids = store_jobs(deployment, api, training_file, size.jobs)
            figures |= _reads(deployment, api, job_ids, size, "_queued")
        figures["life_cycles"] = _shown(
            "life_cycles",
            measure_life_cycles(deployment.database, deployment.settings, size.workers, size.jobs),
        )
        settle(deployment)
        with serving(deployment, size.processes) as api:
            figures |= _reads(deployment, api, job_ids, size, "")
            requests = {"post": lambda number: Call("POST", PATH, job_request(training_file, number + 1))}
            figures |= _loops(deployment, api, requests, size)
            figures["post_unseen"] = _shown("post_unseen", _unseen_posts(deployment, api, training_file))
            figures["metrics"] = _shown("metrics", measure_metrics(deployment, api.one, size.metric_rows))
            streams = measure_streams(
                deployment, api.one, _reopened(deployment, job_ids[: size.streams]), size.seconds
            )
            figures["streams"] = _shown("streams", asyncio.run(streams))
    return figures


def _reads(deployment: Deployment, api: Api, job_ids: Sequence[str], size: Size, suffix: str) -> Figures:
    """Request single jobs and pages of jobs anywhere among all stored ones."""
    chance = random.Random(0)

    def page(number: int) -> Call:
        after = f"&after={chance.choice(job_ids)}" if number % 2 else ""
        return Call("GET", f"{PATH}?limit=20{after}")

    requests = {
        f"poll{suffix}": lambda _number: Call("GET", f"{PATH}/{chance.choice(job_ids)}"),
        f"list{suffix}": page,
    }
    return _loops(deployment, api, requests, size)


def _loops(
    deployment: Deployment, api: Api, requests: Mapping[str, Callable[[int], Call]], size: Size
) -> Figures:
    async def run(call_of: Callable[[int], Call]) -> dict[str, float]:
        client = Client(api.ports, deployment.headers)
        await open_loop(client, call_of, rate=size.rate, seconds=1.0)  # connections and caches
        cpu = api.cpu_seconds
        answers = await open_loop(
            client, lambda number: call_of(number + 10**6), rate=size.rate, seconds=size.seconds
        )
        await client.close()
        percent = round(100 * (api.cpu_seconds - cpu) / size.seconds, 1)
        return figures_of(answers, size.rate) | {"api_cpu_percent": percent}

    return {name: _shown(name, asyncio.run(run(call_of))) for name, call_of in requests.items()}


def _unseen_posts(deployment: Deployment, api: Api, training_file: str) -> dict[str, float]:
    """POST jobs one by one, each of which makes the service read and check a thousand rows."""

    async def run() -> list[Answer]:
        client = Client(api.ports, deployment.headers)
        bodies = [job_request(training_file, 1, 17 + number) for number in range(UNSEEN_POSTS)]
        answers = [await client.send(Call("POST", PATH, body), time.monotonic()) for body in bodies]
        await client.close()
        return answers

    return figures_of(asyncio.run(run()), 0.0) | {"rows": DATASET_ROWS}


def _reopened(deployment: Deployment, job_ids: Sequence[str]) -> list[str]:
    """Mark the jobs as running, so that their streams stay open."""
    statement = "UPDATE jobs SET state = 'running', finished_at = NULL WHERE id = ANY(%s)"
    with deployment.database.engine.begin() as connection:
        connection.exec_driver_sql(statement, (list(job_ids),))
    return list(job_ids)


def _shown(scenario: str, figures: dict[str, float]) -> dict[str, float]:
    text = ", ".join(f"{name} {value:g}" for name, value in figures.items())
    print(f"{scenario:>12}: {text}", flush=True)
    return figures


def machine() -> dict[str, Any]:
    """Facts about this machine, without its name."""
    return {
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_before": [round(value, 2) for value in os.getloadavg()],
    }


def report(figures: Figures, size: Size, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The page as JSON."""
    marks = [
        {
            "figure": f"{mark.scenario}.{mark.figure}",
            "value": figures[mark.scenario][mark.figure],
            "mark": str(mark),
            "met": mark.is_met(figures),
        }
        for mark in MARKS
    ]
    date = f"{datetime.now(UTC):%Y-%m-%d}"
    return {"date": date, "machine": dict(facts), "size": vars(size), "marks": marks, "figures": figures}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.service.load", description=__doc__)
    for name, value in vars(Size()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value))
    parser.add_argument("--quick", action="store_true", help="tiny numbers, to check that it runs")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results" / "service.json")
    options = parser.parse_args(arguments)
    base = vars(QUICK if options.quick else Size())
    size = Size(
        **{
            name: value if getattr(options, name) is None else getattr(options, name)
            for name, value in base.items()
        }
    )
    facts = machine()
    page = report(measure(size), size, facts)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(page, indent=2) + "\n")
    for mark in page["marks"]:
        print(f"{'met   ' if mark['met'] else 'missed'} {mark['figure']}: {mark['value']:g}, {mark['mark']}")
    return 0 if all(mark["met"] for mark in page["marks"]) else 1


if __name__ == "__main__":
    sys.exit(main())
