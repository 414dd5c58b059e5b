"""Measures many small jobs on four GPUs with one worker, and the overhead of a rank on Ray.

    python -m bench.hosts.run [--jobs 100] [--rounds 3]

The GPUs are only declared. A small job runs the tests' fake engine, which trains for 5 s. The overhead is
measured with a real engine with one rank: the time from the claim to the first step and the seconds of a
step, alternately on Ray and as a plain process of the worker. Writes `bench/results/hosts.json`.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from sqlalchemy import func, select

from bench.machine import machine_name
from examples.tiny_model import make_model
from grpo_engine.config.job import Runtime
from service.jobs.model.states import JobState
from service.platform.db import Database, connect
from service.platform.migrate import upgrade
from service.platform.storage import Storage, open_storage
from service.platform.tables.core import Job, JobEvent, Metric
from service.settings import Settings
from tests.support.ray_hosts.cluster import ray_hosts
from tests.support.ray_hosts.network import Network
from tests.support.ray_hosts.stores import stores_on
from tests.support.servers import wait_until
from tests.worker.cluster.conftest import GPUS, Cluster
from tests.worker.jobs import insert_dataset, insert_job, method, read_job

RESULTS = Path(__file__).parents[1] / "results" / "hosts.json"
SAMPLE_SECONDS = 0.25
FIRST_STEP = 1
STEPS = 30


@dataclass(frozen=True)
class Deployment:
    """A cluster with database and storage."""

    cluster: Cluster
    settings: Settings
    database: Database
    storage: Storage


@contextmanager
def deployed(folder: Path) -> Iterator[Deployment]:
    """Three hosts, two of them with two GPUs, and the stores on a fourth."""
    with (
        Network(len(GPUS) + 1) as network,
        stores_on(network.hosts[-1]) as stores,
        ray_hosts(network.hosts[:-1], num_gpus=GPUS, environment=stores.environment) as nodes,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in stores.environment.items():
            patch.setenv(name, value)
        home = folder / "home"
        make_model(home / "models" / "tiny", hidden=256, layers=4, seed=1)
        settings = Settings(
            home=home,
            database_url=stores.postgres.url,  # type: ignore[arg-type]
            storage_url=f"s3://{stores.s3.new_bucket()}",
            launcher="ray",
            runtime=Runtime(device="cpu", dtype="float32", num_threads=1),
            chat_models=0,
            warm_engine=False,
        )
        upgrade(settings)
        yield Deployment(
            Cluster(nodes, stores), settings, connect(settings), open_storage(settings.storage_location)
        )


def many_jobs(place: Deployment, num_jobs: int) -> dict[str, Any]:
    """Run small jobs; measure how many held a GPU, and how many had an engine, while others were queued."""
    file_id = insert_dataset(place.database, place.storage, {"*": {"step_seconds": 0.5}})
    jobs = [
        insert_job(place.database, file_id, required_gpus=1, resources={"gpus": 1}) for _ in range(num_jobs)
    ]
    place.cluster.start_worker(
        place.settings.model_copy(update={"engine_module": "tests.support.fake_engine"})
    )
    held, engines = [], []
    while states := states_of(place.database):
        if states.get(JobState.QUEUED.value):
            held.append(states.get(JobState.RUNNING.value, 0))
            engines.append(len(place.cluster.engine_pids()))
        if set(states) <= {JobState.SUCCEEDED.value, JobState.FAILED.value}:
            break
        time.sleep(SAMPLE_SECONDS)
    place.cluster.end_workers()
    start = next(index for index, number in enumerate(held) if number == max(held))
    full = sum(GPUS)
    return {
        "jobs": num_jobs,
        "succeeded": sum(read_job(place.database, each).state == "succeeded" for each in jobs),
        "most_at_once": max(held),
        "most_engines_at_once": max(engines),
        "share_of_time_all_gpus_held": sum(number == full for number in held[start:]) / len(held[start:]),
        "share_of_time_all_engines_run": sum(number == full for number in engines[start:])
        / len(held[start:]),
    }


def states_of(database: Database) -> dict[str, int]:
    with database.reading() as session:
        return dict(session.execute(select(Job.state, func.count()).group_by(Job.state)).all())  # type: ignore[arg-type]


def price(place: Deployment, rounds: int) -> dict[str, Any]:
    """Durations of the start and of a step of one rank, on Ray and as a plain process."""
    found: dict[str, list[tuple[float, float]]] = {"plain": [], "ray": []}
    for number in range(rounds):
        for launcher, results in found.items():
            update = {"launcher": "local" if launcher == "plain" else "ray", "pool": f"{launcher}-{number}"}
            results.append(one_job(place, place.settings.model_copy(update=update)))
    medians = {name: [median(column) for column in zip(*each, strict=True)] for name, each in found.items()}
    return {
        "rounds": found,
        "start_seconds_more": medians["ray"][0] - medians["plain"][0],
        "step_ratio": medians["ray"][1] / medians["plain"][1],
    }


def one_job(place: Deployment, settings: Settings) -> tuple[float, float]:
    """Seconds from the claim to the first step, and seconds of a step."""
    hyperparameters = {"n_steps": STEPS, "checkpoint_interval": 1000, "group_size": 8, "prompts_per_step": 2}
    shape = method(**hyperparameters, max_completion_tokens=32).model_dump(mode="json")
    shape["reinforcement"]["grader"] = {"type": "format", "pattern": "[0-9]", "match": "search"}
    file_id = insert_dataset(place.database, place.storage)
    job_id = insert_job(place.database, file_id, method=shape, total_steps=STEPS, pool=settings.pool)
    place.cluster.start_worker(settings)
    wait_until(lambda: read_job(place.database, job_id).state == "succeeded", 300, "the job has succeeded")
    place.cluster.end_workers()
    events = select(JobEvent.created_at).where(JobEvent.job_id == job_id)
    with place.database.reading() as session:
        claimed = session.scalars(events.where(JobEvent.message.startswith("Attempt 1 started"))).one()
        trained = session.scalars(events.where(JobEvent.message.startswith(f"Step {FIRST_STEP}/"))).one()
        rows = session.scalars(select(Metric.values).where(Metric.job_id == job_id, Metric.step > 2)).all()
    return trained - claimed, median(row["step_time"] for row in rows)


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(prog="python -m bench.hosts.run", description=__doc__)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, deployed(Path(folder)) as place:
        found: dict[str, Any] = {"machine": machine_name()}
        found |= {"price": price(place, given.rounds)} if given.rounds else {}
        found |= {"many": many_jobs(place, given.jobs)} if given.jobs else {}
        place.database.engine.dispose()
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
