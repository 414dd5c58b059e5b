"""A sharded job on two hosts: each stores its own shards, and two ranks continue what four have written."""

from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load
from sqlalchemy import select

from examples.tiny_model import make_model
from grpo_engine.config.job import Runtime
from service.platform.db import Database
from service.platform.storage import Storage
from service.platform.tables.core import Checkpoint
from service.settings import Settings
from tests.worker.cluster.conftest import Cluster
from tests.worker.cluster.test_real_engine import TOLERANCE, insert_real_job
from tests.worker.jobs import read_job
from tests.worker.outcomes import messages, metric_steps, weights

WaitFor = Callable[..., None]
STEPS = 24
FOUR_OR_TWO = {"required_gpus": 2, "resources": {"gpus": 4, "hosts": 2, "min_gpus": 2}}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """The real engine with a small random model, in float32 and divided among the ranks."""
    make_model(settings.home / "models" / "small", hidden=64, layers=2, seed=1)
    runtime = Runtime(dtype="float32", num_threads=1, sharding="fsdp")
    return settings.model_copy(update={"engine_module": "grpo_engine", "runtime": runtime})


def shards_on(home: Path) -> set[str]:
    return {path.name for path in home.glob("runs/*/*/checkpoints/step-*/optimizer/*")}


def newest_checkpoint(database: Database, job_id: str) -> Checkpoint:
    rows = select(Checkpoint).where(Checkpoint.job_id == job_id).order_by(Checkpoint.step.desc())
    with database.reading() as session:
        return session.scalars(rows.limit(1)).one()


@pytest.mark.several_hosts
def test_two_ranks_continue_from_the_shards_of_four_when_a_host_is_lost(
    cluster: Cluster, settings: Settings, wait_for: WaitFor, database: Database, storage: Storage
) -> None:
    alone = settings.model_copy(
        update={"launcher": "local", "pool": "alone", "home": settings.home.with_name("alone")}
    )
    (alone.home / "models").mkdir(parents=True)
    make_model(alone.home / "models" / "small", hidden=64, layers=2, seed=1)
    expected = insert_real_job(database, storage, pool="alone")
    cluster.start_worker(alone)
    wait_for(expected, 120, state="succeeded")
    cluster.end_workers()

    job_id = insert_real_job(database, storage, **FOUR_OR_TWO)
    first, second = cluster.nodes[1:]
    cluster.start_worker(settings)
    wait_for(job_id, 180, checkpoint_step=2)
    row = newest_checkpoint(database, job_id)
    by_host = [shards_on(first.home), shards_on(second.home)]
    names = [f"rank-0000{rank}-of-00004.safetensors" for rank in range(4)]
    assert sorted(by_host, key=min) == [set(names[:2]), set(names[2:])]
    assert [Path(key).name for key in row.shards] == names[2:]
    assert all(storage.exists(key) for key in row.storage_keys)
    second.kill()
    wait_for(job_id, 240, state="succeeded")

    assert read_job(database, job_id).attempt >= 2
    assert "The attempt has 2 of the job's 4 GPUs." in messages(database, job_id)
    assert any(each.startswith("Training resumed from step") for each in messages(database, job_id))
    assert metric_steps(database, job_id) == list(range(1, STEPS + 1))
    one, several = (load(weights(database, storage, each)) for each in (expected, job_id))
    assert max(float((one[name] - several[name]).abs().max()) for name in one) <= TOLERANCE
    assert newest_checkpoint(database, job_id).shards == {}
