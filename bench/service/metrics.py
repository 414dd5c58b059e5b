"""Measures recording ten thousand steps of a job, and reading them in full, thinned, since a step and as CSV.

Boundary: the worker's recording function and the API's metrics endpoints, one request at a time.
"""

import asyncio
import json
import time
from collections.abc import Sequence

from bench.service.client import Call, Client, percentile
from bench.service.deployment import PATH, TENANT, Api, Deployment
from grpo_engine.contract.events import StepFinished
from service.jobs.progress.recording import record_events
from service.jobs.store import claiming

BATCH_STEPS = 100
REPETITIONS = 20
CURVES = ("reward", "reward_std", "loss", "kl", "entropy", "learning_rate", "grad_norm", "tokens_per_second")
NAMES = CURVES + tuple(f"part_{number}" for number in range(12))


def measure_metrics(deployment: Deployment, api: Api, num_rows: int) -> dict[str, float]:
    """Durations in seconds and milliseconds. Raises AssertionError if a row is missing."""
    job_id, fence = _running_job(deployment)
    started = time.monotonic()
    for first in range(1, num_rows + 1, BATCH_STEPS):
        with deployment.database.transaction() as session:
            steps = range(first, min(first + BATCH_STEPS, num_rows + 1))
            assert record_events(session, job_id, fence, _steps(steps)) == len(steps)
    seconds = time.monotonic() - started
    reads = asyncio.run(_reads(deployment, api, job_id, num_rows))
    return {"rows": num_rows, "rows_recorded_per_second": round(num_rows / seconds, 1), **reads}


def _running_job(deployment: Deployment) -> tuple[str, int]:
    with deployment.database.transaction() as session:
        job = claiming.claim(session, pool="default", worker="virtual", lease_seconds=3600)
        assert job is not None, "no job is queued"
        assert job.tenant == TENANT
        return job.id, job.fence


def _steps(numbers: Sequence[int]) -> list[StepFinished]:
    return [
        StepFinished(sequence=number, at=float(number), step=number, metrics=dict.fromkeys(NAMES, number / 7))
        for number in numbers
    ]


async def _reads(deployment: Deployment, api: Api, job_id: str, num_rows: int) -> dict[str, float]:
    client = Client(api.ports, deployment.headers)
    place = f"{PATH}/{job_id}"
    calls = {
        "whole": f"{place}/metrics?limit=10000",
        "thinned": f"{place}/metrics?max_points=500",
        "one_name": f"{place}/metrics?max_points=500&names=reward",
        "newest": f"{place}/metrics?after_step={num_rows - 10}",
        "csv": f"{place}/metrics.csv",
    }
    found: dict[str, float] = {}
    for name, path in calls.items():
        answers = [await client.send(Call("GET", path), time.monotonic()) for _ in range(REPETITIONS)]
        assert all(answer.status == 200 for answer in answers), answers[0].body[:500]
        seconds = sorted(answer.seconds for answer in answers)
        found[f"{name}_p50_ms"] = round(1000 * percentile(seconds, 0.5), 2)
        if name == "whole":
            rows = json.loads(answers[0].body)["data"]
            assert [row["step"] for row in rows] == list(range(1, num_rows + 1)), "rows are missing"
    await client.close()
    return found
