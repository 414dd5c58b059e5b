"""`integrations` of a job: OpenAI's own shape, ours beside it, the operator's for all jobs."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from openai import OpenAI
from openai.types.fine_tuning import FineTuningJob
from sqlalchemy import select

from service.app import create_app
from service.integrations import Tensorboard
from service.jobs.store import machines
from service.platform.db import Database
from service.platform.tables.core import Job
from service.platform.tables.sinks import JobSink
from service.settings import Settings
from tests.conftest import on_sqlite, settings_for
from tests.service.job_samples import create, make_model, reinforcement, request, upload

pytestmark = on_sqlite

JOBS = "/v1/fine_tuning/jobs"
WANDB = {"type": "wandb", "wandb": {"project": "sums", "name": "n", "entity": "us", "tags": ["a", "b"]}}
TENSORBOARD = {"type": "tensorboard"}
MLFLOW = {"type": "mlflow", "mlflow": {"experiment": "sums/small"}}


@pytest.fixture
def training_file(client: TestClient, settings: Settings) -> str:
    make_model(settings.home)
    return upload(client)


def rows(database: Database, job_id: str) -> dict[str, dict[str, Any]]:
    with database.reading() as session:
        found = session.scalars(select(JobSink).where(JobSink.job_id == job_id))
        return {row.type: row.settings for row in found}


def test_openai_s_client_names_a_wandb_project_and_reads_it_back_strictly(
    openai_client: OpenAI, training_file: str
) -> None:
    job = openai_client.fine_tuning.jobs.create(
        model="tiny",
        training_file=training_file,
        method=reinforcement(),  # type: ignore[arg-type]
        integrations=[WANDB],  # type: ignore[list-item]
    )
    assert job.integrations is not None
    assert job.integrations[0].to_dict() == WANDB
    assert FineTuningJob.model_validate(job.to_dict()).integrations == job.integrations


def test_integrations_lists_openais_sinks_and_sinks_lists_all(client: TestClient, training_file: str) -> None:
    job = create(client, training_file, integrations=[TENSORBOARD, WANDB, MLFLOW])
    assert job["integrations"] == [WANDB]
    assert job["sinks"] == [TENSORBOARD, WANDB, MLFLOW]
    FineTuningJob.model_validate(job)


def test_each_sink_of_a_job_gets_a_row_to_keep_its_place(
    client: TestClient, training_file: str, database: Database
) -> None:
    job = create(client, training_file, integrations=[TENSORBOARD, MLFLOW])
    assert rows(database, job["id"]) == {"tensorboard": {}, "mlflow": {"experiment": "sums/small"}}


def test_a_job_without_sinks_has_none(client: TestClient, training_file: str, database: Database) -> None:
    job = create(client, training_file)
    assert (job["integrations"], job["sinks"], rows(database, job["id"])) == ([], [], {})
    with database.reading() as session:
        assert session.get_one(Job, job["id"]).integrations is None


def test_a_clone_writes_to_the_same_sinks(client: TestClient, training_file: str) -> None:
    job = create(client, training_file, integrations=[WANDB])
    assert client.post(f"{JOBS}/{job['id']}/clone", json={}).json()["integrations"] == [WANDB]


@pytest.mark.parametrize(
    ("integration", "param"),
    [
        ({"type": "comet"}, "integrations[0].type"),
        ({"type": "wandb"}, "integrations[0].wandb"),
        ({"type": "wandb", "wandb": {"project": "a/b"}}, "integrations[0].wandb.project"),
        ({"type": "wandb", "wandb": {"project": "p", "api_key": "x"}}, "integrations[0].wandb.api_key"),
        ({"type": "tensorboard", "logdir": "/etc"}, "integrations[0].logdir"),
    ],
)
def test_a_wrong_integration_is_refused_at_its_field(
    client: TestClient, training_file: str, integration: dict[str, Any], param: str
) -> None:
    answer = client.post(JOBS, json=request(training_file, integrations=[integration]))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_second_sink_of_a_type_is_refused(client: TestClient, training_file: str) -> None:
    second = {"type": "wandb", "wandb": {"project": "other"}}
    answer = client.post(JOBS, json=request(training_file, integrations=[WANDB, TENSORBOARD, second]))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "integrations[2].type")
    assert "only one sink of the type wandb" in error["message"]


def test_the_operator_s_sinks_are_every_job_s_and_a_job_s_own_come_first(
    settings: Settings, database: Database, api_key: str
) -> None:
    make_model(settings.home)
    own = settings.model_copy(
        update={"integrations": settings_for(settings.home, integrations=[MLFLOW, TENSORBOARD]).integrations}
    )
    headers = {"authorization": f"Bearer {api_key}"}
    with TestClient(create_app(own), headers=headers) as client:
        mine = {"type": "mlflow", "mlflow": {"experiment": "mine"}}
        job = create(client, upload(client), integrations=[mine])
    assert job["sinks"] == [mine, TENSORBOARD]


def test_a_sink_whose_package_no_worker_has_is_a_warning_before_the_job_runs(
    client: TestClient, training_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(machines.SINK_PACKAGES, "tensorboard", "no_such_package")
    machines.installed_sinks.cache_clear()
    answer = client.post(f"{JOBS}/validate", json=request(training_file, integrations=[TENSORBOARD, MLFLOW]))
    machines.installed_sinks.cache_clear()
    (warning,) = (one for one in answer.json()["warnings"] if one["code"] == "sink_unavailable")
    assert "pip install 'grpo-service[tensorboard]'" in warning["message"]


def test_the_environment_names_sinks_in_the_same_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_INTEGRATIONS", '[{"type": "tensorboard"}]')
    assert Settings().integrations == [Tensorboard(type="tensorboard")]
