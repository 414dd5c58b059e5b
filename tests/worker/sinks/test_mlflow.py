"""MLflow's run after an interruption: what the next process writes, and under which names."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from service.jobs.model.states import JobState
from worker.sinks.base import SinkJob
from worker.sinks.mlflow_runs import JOB_TAG, MlflowRun, allowed

pytestmark = pytest.mark.filterwarnings(
    "ignore::sqlalchemy.exc.SADeprecationWarning"  # in MLflow's own statements
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowClient]:
    uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", uri)
        yield MlflowClient(tracking_uri=uri)


def job(job_id: str) -> SinkJob:
    config = {"model": "tiny", "lora.rank": 8}
    return SinkJob(job_id, "acme", {"experiment": "sums"}, config, -1, Path("unused"), Path("unused"))


def run_of(client: MlflowClient, job_id: str) -> Run:
    """The only run of the job."""
    (experiment,) = (each for each in client.search_experiments() if each.name == "sums")
    (run,) = client.search_runs([experiment.experiment_id], f"tags.`{JOB_TAG}` = '{job_id}'")
    return run


def points(client: MlflowClient, job_id: str, name: str) -> list[tuple[int, float]]:
    history = client.get_metric_history(run_of(client, job_id).info.run_id, name)
    return sorted((each.step, each.value) for each in history)


def test_a_run_whose_last_batch_was_interrupted_gets_each_missing_value_once(client: MlflowClient) -> None:
    first = MlflowRun(job("interrupted"))
    for step in (1, 2):
        first.write(step, {"reward": step / 8, "kl": 0.5})
    first.flush()
    client.log_metric(run_of(client, "interrupted").info.run_id, "reward", 3 / 8, step=3)
    second = MlflowRun(job("interrupted"))
    assert second.last_step == 2
    for step in (3, 4):
        second.write(step, {"reward": step / 8, "kl": 0.5, "eval/reward": 1.0})
    second.close(JobState.SUCCEEDED)
    assert points(client, "interrupted", "reward") == [(step, step / 8) for step in (1, 2, 3, 4)]
    assert points(client, "interrupted", "kl") == [(step, 0.5) for step in (1, 2, 3, 4)]
    assert points(client, "interrupted", "eval/reward") == [(3, 1.0), (4, 1.0)]


def test_a_run_is_continued_without_reading_its_history(
    client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = MlflowRun(job("long"))
    first.write(1, {"reward": 0.5})
    first.flush()
    monkeypatch.delattr(MlflowClient, "get_metric_history")
    assert MlflowRun(job("long")).last_step == 0


def test_a_run_that_was_created_without_its_parameters_gets_them_later(client: MlflowClient) -> None:
    experiment = client.get_experiment_by_name("sums")
    found = experiment.experiment_id if experiment else client.create_experiment("sums")
    created = client.create_run(found, tags={JOB_TAG: "bare"})
    client.log_param(created.info.run_id, "model", "tiny")
    MlflowRun(job("bare"))
    assert run_of(client, "bare").data.params == {"model": "tiny", "lora.rank": "8"}


def test_names_that_mlflow_refuses_remain_different(client: MlflowClient) -> None:
    parts = ("acc < 50", "acc > 50", "✅", "❌", "a//b", "a/./b", "a/../b", "plain_name-1.5/x y")
    names = [f"rewards/{part}/mean" for part in parts]
    run = MlflowRun(job("names"))
    run.write(1, {name: float(number) for number, name in enumerate(names)})
    run.flush()
    shown = run_of(client, "names").data.metrics
    assert shown == {allowed(name): float(number) for number, name in enumerate(names)}
    assert len(shown) == len(names)
    assert shown[names[-1]] == len(names) - 1
