"""Samplers with GPUs of their own draw the tokens that the training process would draw itself."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load
from sqlalchemy import select
from torch import Tensor

from examples.tiny_model import make_model
from grpo_engine.config.job import Runtime
from service.platform.db import Database
from service.platform.storage import Storage
from service.platform.tables.core import Metric
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.support.servers import wait_until
from tests.worker.conftest import engine_pids
from tests.worker.jobs import insert_dataset, insert_job, method, read_job
from tests.worker.outcomes import in_background, messages, metric_steps, weights
from worker.attempt.runner import run_job
from worker.attempt.worker import Worker
from worker.cluster.plan import SILENCE_SECONDS
from worker.launchers.gpu_reservation import HostGpus

STEPS = 6
TOLERANCE = 1e-6
pytestmark = [pytest.mark.slow, on_sqlite]  # one of the two: Ray takes long to start


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """The real engine with a small random model, in float32."""
    make_model(settings.home / "models" / "small", hidden=64, layers=2, seed=1)
    runtime = Runtime(dtype="float32", num_threads=1)
    return settings.model_copy(update={"engine_module": "grpo_engine", "runtime": runtime, "gpus": 4})


@pytest.fixture
def four_gpus(worker: Worker) -> Worker:
    """The worker with four declared GPUs."""
    return replace(worker, gpus=HostGpus.of(worker.settings))


@pytest.fixture
def run(database: Database, storage: Storage, four_gpus: Worker) -> Callable[..., dict[str, Tensor]]:
    """Run a job with these resources and hyperparameters; its adapter."""

    def run(resources: dict[str, int], during: Callable[[str], None] | None = None, **more: Any) -> Any:
        job_id = insert(database, storage, resources, **more)
        if during is None:
            assert run_job(four_gpus)
        else:
            running = in_background(four_gpus)
            during(job_id)
            running.join()
        job = read_job(database, job_id)
        assert (job.state, job.attempt) == ("succeeded", 1), (job.failure, messages(database, job_id))
        assert metric_steps(database, job_id) == list(range(1, STEPS + 1))
        assert not engine_pids(four_gpus.settings)
        return load(weights(database, storage, job_id))

    return run


def insert(database: Database, storage: Storage, resources: dict[str, int], **more: Any) -> str:
    shape: dict[str, Any] = {"n_steps": STEPS, "checkpoint_interval": 2, "group_size": 4}
    shape |= {"prompts_per_step": 4, "max_completion_tokens": 8, "learning_rate": 1e-3}
    shape |= {"adam_epsilon": 1e-6, "lora": {"rank": 4, "alpha": 8}}
    given = method(**shape | more).model_dump(mode="json")
    given["reinforcement"]["grader"] = {"type": "format", "pattern": "[0-9]", "match": "search"}
    needed = {"required_gpus": sum(resources.values()), "resources": resources}
    file_id = insert_dataset(database, storage)
    return insert_job(database, file_id, model="small", method=given, total_steps=STEPS, **needed)


def assert_equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    assert any(bool(tensor.any()) for name, tensor in left.items() if "lora_B" in name)
    assert max(float((left[name] - right[name]).abs().max()) for name in left) <= TOLERANCE


def test_two_ranks_train_while_a_sampler_samples_the_next_step(run: Callable[..., dict[str, Tensor]]) -> None:
    alone = run({"gpus": 1}, max_staleness=1)
    assert_equal(alone, run({"gpus": 2, "sampler_gpus": 1}, max_staleness=1))


def test_killed_samplers_are_replaced_and_repeat_their_prompts(
    run: Callable[..., dict[str, Tensor]], four_gpus: Worker, database: Database
) -> None:
    killed: list[str] = []

    def kill_engine_and_actor(job_id: str) -> None:
        killed.append(job_id)
        wait_until(lambda: 1 in metric_steps(database, job_id), 120, "a step is trained")
        first, second = sampler_pids(four_gpus.settings)
        os.kill(first, signal.SIGKILL)
        os.kill(parent(second), signal.SIGKILL)

    found = run({"gpus": 1, "sampler_gpus": 2}, kill_engine_and_actor)
    assert_equal(run({"gpus": 1}), found)
    assert replaced(database, killed[0]) == 1


def test_a_sampler_that_stops_responding_delays_only_one_step(
    run: Callable[..., dict[str, Tensor]], four_gpus: Worker, database: Database
) -> None:
    stopped: list[str] = []

    def stop_actor(job_id: str) -> None:
        stopped.append(job_id)
        wait_until(lambda: 1 in metric_steps(database, job_id), 120, "a step is trained")
        os.kill(parent(sampler_pids(four_gpus.settings)[0]), signal.SIGSTOP)

    found = run({"gpus": 1, "sampler_gpus": 2}, stop_actor)
    assert_equal(run({"gpus": 1}), found)
    seconds = values_of(database, stopped[0], "timing/sample_seconds")
    assert sum(each > SILENCE_SECONDS for each in seconds) == 1, seconds


def sampler_pids(settings: Settings) -> list[int]:
    """Engines that only sample."""
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in engine_pids(settings)}
    return [pid for pid, command in commands.items() if b"\0--sampler\0" in command]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def replaced(database: Database, job_id: str) -> float:
    """Largest number of restarts in the metrics of the job's steps."""
    return max(values_of(database, job_id, "sampling/replaced_samplers"))


def values_of(database: Database, job_id: str, metric: str) -> list[float]:
    """The metric's value of each step that has one."""
    with database.reading() as session:
        rows = session.scalars(select(Metric.values).where(Metric.job_id == job_id)).all()
    return [row[metric] for row in rows if metric in row]
