"""vLLM on two hosts: each holds one together, or it samples apart from the ranks that train."""

from collections.abc import Callable

import pytest

from examples.tiny_model import make_model
from grpo_engine.config.job import Runtime
from service.platform.db import Database
from service.settings import Settings
from tests.support.servers import wait_until
from tests.worker.cluster.conftest import Cluster
from tests.worker.conftest import ROOT
from tests.worker.jobs import read_job
from tests.worker.outcomes import messages, metric_steps

SETTINGS = {"n_steps": 2, "checkpoint_interval": 2, "max_completion_tokens": 4, "lora": {"rank": 4}}
BATCH = {"prompts_per_step": 4, "group_size": 4}


@pytest.fixture(scope="module")
def host_variables() -> dict[str, str]:
    """The hosts' engines run in vLLM's environment."""
    return {"GRPO_ENGINE_PYTHON": str(ROOT / ".venv-vllm" / "bin" / "python")}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """The cluster's worker with real engines and a real model."""
    model = settings.home / "models" / "tiny"
    make_model(model, hidden=64, layers=2, seed=3)
    shared = {"sharding": "fsdp", "sampler": "vllm", "tensor_parallel": 2, "sample_budget": 16}
    runtime = Runtime.model_validate(
        {
            "device": "cpu",
            "num_threads": 1,
            "weight_budget_bytes": int(0.7 * (model / "model.safetensors").stat().st_size),
            **shared,
        }
    )
    return settings.model_copy(update={"engine_module": "grpo_engine", "runtime": runtime})


@pytest.mark.several_hosts
def test_four_ranks_on_two_hosts_sample_with_tensor_parallelism(
    cluster: Cluster,
    settings: Settings,
    submit: Callable[..., str],
    database: Database,
) -> None:
    resources = {"gpus": 4, "hosts": 2}
    job_id = submit(hyperparameters=SETTINGS | BATCH, required_gpus=4, resources=resources)
    cluster.start_worker(settings)
    wait_until(lambda: read_job(database, job_id).state in ("succeeded", "failed"), 500, "the job has ended")
    assert read_job(database, job_id).state == "succeeded", messages(database, job_id)
    assert metric_steps(database, job_id) == [1, 2]


@pytest.mark.several_hosts
def test_sharded_ranks_train_while_vllm_samples_on_gpus_of_its_own(
    cluster: Cluster,
    settings: Settings,
    submit: Callable[..., str],
    database: Database,
) -> None:
    apart = settings.runtime.model_copy(update={"tensor_parallel": 1, "weight_budget_bytes": None})
    resources = {"gpus": 2, "sampler_gpus": 2}
    ahead = SETTINGS | BATCH | {"n_steps": 3, "max_staleness": 1}
    job_id = submit(hyperparameters=ahead, required_gpus=4, resources=resources)
    cluster.start_worker(settings.model_copy(update={"runtime": apart}))
    wait_until(lambda: read_job(database, job_id).state in ("succeeded", "failed"), 500, "the job has ended")
    assert read_job(database, job_id).state == "succeeded", messages(database, job_id)
    assert metric_steps(database, job_id) == [1, 2, 3]
