"""The engine itself on several hosts: its result is that of one process, whatever is lost on the way."""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from safetensors.torch import load

from examples.tiny_model import make_model
from grpo_engine.config.job import Runtime
from service.platform.archives import unpack
from service.platform.db import Database
from service.platform.storage import Storage
from service.platform.tables.core import Artifact, File
from service.settings import Settings
from tests.engine.run.export_samples import logits
from tests.support.ray_hosts.cluster import address_of
from tests.support.servers import wait_until
from tests.worker.cluster.conftest import Cluster
from tests.worker.jobs import insert_dataset, insert_job, method, read_job
from tests.worker.outcomes import messages, metric_steps, weights

WaitFor = Callable[..., None]
STEPS = 24
TOLERANCE = 1e-6
FOUR_ON_TWO = {"required_gpus": 4, "resources": {"gpus": 4, "hosts": 2}}
GROUPS_LEFT = """
import ray
ray.init(address="auto", log_to_driver=False)
states = [each["state"] for each in ray.util.placement_group_table().values()]
print("groups", sum(state != "REMOVED" for state in states))
"""
pytestmark = pytest.mark.several_hosts


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """The real engine with a small random model, in float32."""
    make_model(settings.home / "models" / "small", hidden=64, layers=2, seed=1)
    runtime = Runtime(dtype="float32", num_threads=1)
    return settings.model_copy(update={"engine_module": "grpo_engine", "runtime": runtime})


def insert_real_job(
    database: Database,
    storage: Storage,
    hyperparameters: Mapping[str, object] = MappingProxyType({}),
    **values: object,
) -> str:
    given = {
        "n_steps": STEPS,
        "checkpoint_interval": 2,
        "group_size": 4,
        "prompts_per_step": 4,
        "max_completion_tokens": 8,
        "learning_rate": 1e-4,
        "adam_epsilon": 1e-6,
        "lora": {"rank": 4, "alpha": 8},
    }
    file_id = insert_dataset(database, storage)
    shape = method(**given | dict(hyperparameters)).model_dump(mode="json")
    shape["reinforcement"]["grader"] = {"type": "format", "pattern": "[0-9]", "match": "search"}
    row = {"method": shape, "total_steps": STEPS}
    return insert_job(database, file_id, model="small", **row | values)


def groups_left(cluster: Cluster) -> str:
    """Placement groups that are not removed."""
    head = cluster.nodes[0]
    environment = head.environment | {"RAY_ADDRESS": address_of(head)}
    return head.host.run([sys.executable, "-c", GROUPS_LEFT], env=environment).splitlines()[-1]


@pytest.fixture
def run_alone(
    cluster: Cluster, settings: Settings, wait_for: WaitFor, database: Database, storage: Storage
) -> Callable[..., str]:
    """Run a job in one process; its id."""

    def run(**options: Any) -> str:
        home = settings.home.with_name("alone")
        make_model(home / "models" / "small", hidden=64, layers=2, seed=1)
        job_id = insert_real_job(database, storage, pool="alone", **options)
        cluster.start_worker(settings.model_copy(update={"launcher": "local", "pool": "alone", "home": home}))
        wait_for(job_id, 120, state="succeeded")
        cluster.end_workers()
        return job_id

    return run


def assert_same_weights(database: Database, storage: Storage, expected: str, found: str) -> None:
    one, several = (load(weights(database, storage, each)) for each in (expected, found))
    assert one.keys() == several.keys()
    assert any(bool(tensor.any()) for name, tensor in one.items() if "lora_B" in name)
    assert max(float((one[name] - several[name]).abs().max()) for name in one) <= TOLERANCE


def test_a_sampler_whose_host_is_lost_is_replaced_in_the_same_attempt(
    cluster: Cluster,
    settings: Settings,
    run_alone: Callable[..., str],
    wait_for: WaitFor,
    database: Database,
    storage: Storage,
) -> None:
    expected = run_alone(hyperparameters={"max_staleness": 1})
    job_id = insert_real_job(
        database,
        storage,
        hyperparameters={"max_staleness": 1},
        required_gpus=3,
        resources={"gpus": 2, "sampler_gpus": 1},
    )
    cluster.start_worker(settings)
    wait_for(job_id, 180, step=2)
    (node,) = [each for each in cluster.nodes if any(map(is_sampler, cluster.engine_pids(each)))]
    assert len(cluster.engine_pids(node)) == 1
    node.kill_raylet()
    wait_until(lambda: not cluster.engine_pids(node), 120, "the sampler has ended")
    cluster.repair()
    wait_for(job_id, 300, state="succeeded", attempt=1)
    assert_same_weights(database, storage, expected, job_id)
    wait_until(lambda: not cluster.engine_pids(), 120, "no engine is left")


def is_sampler(pid: int) -> bool:
    return b"\0--sampler\0" in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_job_that_loses_rank_host_link_and_worker_equals_one_process(
    cluster: Cluster,
    settings: Settings,
    run_alone: Callable[..., str],
    wait_for: WaitFor,
    database: Database,
    storage: Storage,
) -> None:
    expected = run_alone()
    job_id = insert_real_job(database, storage, **FOUR_ON_TWO)
    first, second = cluster.nodes[1:]
    first.host.delay(50, loss_percent=2)
    worker = cluster.start_worker(settings)

    def await_progress() -> int:
        """Wait for two more checkpoints; returns the attempt."""
        reached = read_job(database, job_id).checkpoint_step
        try:
            wait_for(job_id, 180, checkpoint_step=reached + 3)
        except TimeoutError as error:
            raise AssertionError(messages(database, job_id)) from error
        return read_job(database, job_id).attempt

    def await_end_of(pids: set[int]) -> None:
        wait_until(lambda: not pids & set(cluster.engine_pids()), 120, "its ranks have ended")

    await_progress()
    os.kill(cluster.engine_pids(second)[0], signal.SIGKILL)
    await_progress()
    first.kill_raylet()
    await_end_of(set(cluster.engine_pids()))
    cluster.repair()
    first.host.delay(50, loss_percent=2)
    await_progress()
    running = set(cluster.engine_pids())
    second.host.link_down()
    time.sleep(20)
    await_end_of(running)
    cluster.repair()
    await_progress()
    worker.kill()
    await_end_of(set(cluster.engine_pids()))
    cluster.start_worker(settings)
    wait_for(job_id, 240, state="succeeded")
    first.host.undelay()

    assert read_job(database, job_id).attempt >= 5, messages(database, job_id)
    assert metric_steps(database, job_id) == list(range(1, STEPS + 1))
    assert_same_weights(database, storage, expected, job_id)
    wait_until(lambda: not cluster.engine_pids(), 120, "no engine is left")
    assert groups_left(cluster) == "groups 0"


def test_a_model_trained_on_two_hosts_is_merged_on_the_cluster(
    cluster: Cluster, settings: Settings, wait_for: WaitFor, database: Database, storage: Storage,
    tmp_path: Path,
) -> None:  # fmt: skip
    job_id = insert_real_job(
        database, storage, hyperparameters={"n_steps": 4}, **FOUR_ON_TWO | {"total_steps": 4}
    )
    cluster.start_worker(settings)
    wait_for(job_id, 120, state="succeeded")
    adapter = result_of(database, job_id, "adapter")
    export_id = insert_job(
        database,
        model=read_job(database, job_id).fine_tuned_model,
        training_file="",
        export={"job_id": job_id, "format": "merged", "step": 4, "base": "small", "sha256": adapter.sha256},
    )
    wait_for(export_id, 120, state="succeeded", attempt=1)

    merged = result_of(database, export_id, "merged")
    for name, file in (("adapter", adapter), ("merged", merged)):
        storage.download(file.storage_key, tmp_path / f"{name}.tar")
        unpack(tmp_path / f"{name}.tar", tmp_path / name)
    base = settings.models_dir / "small"
    expected = logits(base, tmp_path / "adapter")
    assert not torch.equal(expected, logits(base))
    torch.testing.assert_close(logits(tmp_path / "merged"), expected, atol=1e-4, rtol=1e-4)
    assert groups_left(cluster) == "groups 0"


def result_of(database: Database, job_id: str, kind: str) -> File:
    """The archive of a job or of an export."""
    with database.reading() as session:
        files = session.query(File).join(Artifact, Artifact.id == File.id)
        return files.filter(Artifact.job_id == job_id, Artifact.kind == kind).one()
