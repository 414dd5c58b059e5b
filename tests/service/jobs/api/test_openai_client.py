"""OpenAI's unmodified client against a real server: files, jobs, events, checkpoints, models."""

from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.fine_tuning import FineTuningJob
from openai.types.fine_tuning.fine_tuning_job import Method as OpenAIMethod
from sqlalchemy import select

from service.jobs.model.openai_terms import from_openai_terms, in_openai_terms
from service.jobs.model.states import JobState
from service.jobs.store import history
from service.jobs.store.history import HistoryEntry
from service.platform.db import Database
from service.platform.tables.core import IdempotencyKey, Job
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.grader_samples import OPENAIS_GRADERS, OWN_GRADERS
from tests.service.job_samples import (
    METHOD,
    add_artifact,
    add_checkpoint,
    add_job,
    jsonl,
    num_jobs,
    reinforcement,
    row,
)

pytestmark = [on_sqlite, pytest.mark.usefixtures("model")]  # nothing here depends on the database


@pytest.fixture
def training_file(openai_client: OpenAI) -> str:
    content = jsonl(*[row()] * 16)
    return openai_client.files.create(file=("train.jsonl", content), purpose="fine-tune").id


def create(client: OpenAI, training_file: str, **more: Any) -> FineTuningJob:
    method: Any = reinforcement(group_size=4, beta=0.1)
    return client.fine_tuning.jobs.create(model="tiny", training_file=training_file, method=method, **more)


def test_a_job_is_created_and_read_back(openai_client: OpenAI, training_file: str) -> None:
    job = create(openai_client, training_file, seed=7, suffix="demo", metadata={"team": "a"})
    assert (job.status, job.seed, job.model, job.metadata) == ("queued", 7, "tiny", {"team": "a"})
    assert job.training_file == training_file
    again = openai_client.fine_tuning.jobs.retrieve(job.id)
    assert again == job
    assert again.method is not None
    hyperparameters = again.to_dict()["method"]["reinforcement"]["hyperparameters"]  # type: ignore[index]
    assert (hyperparameters["group_size"], hyperparameters["beta"]) == (4, 0.1)
    FineTuningJob.model_validate(job.to_dict())


@pytest.mark.parametrize("grader", OWN_GRADERS, ids=lambda grader: str(grader["type"]))
def test_strict_parsers_read_a_job_with_a_rule_that_openai_has_no_type_for(
    openai_client: OpenAI, training_file: str, grader: dict[str, Any]
) -> None:
    method: Any = reinforcement(grader, group_size=4)
    jobs = openai_client.fine_tuning.jobs
    job = jobs.create(model="tiny", training_file=training_file, method=method)
    answer: Any = jobs.retrieve(job.id).to_dict()
    FineTuningJob.model_validate(answer)
    kept = answer["method"]["reinforcement"]["grader"]
    assert (kept["type"], kept["rule"]) == ("python", grader["type"])
    assert kept.keys() > grader.keys()
    again: Any = jobs.create(model="tiny", training_file=training_file, method=answer["method"]).to_dict()
    assert again["method"] == answer["method"]


@pytest.mark.parametrize(
    ("kind", "grader"), OPENAIS_GRADERS, ids=lambda given: getattr(given, "__name__", "")
)
def test_openais_own_graders_come_back_as_what_they_are(
    openai_client: OpenAI, training_file: str, kind: type[object], grader: dict[str, Any]
) -> None:
    jobs = openai_client.fine_tuning.jobs
    method: Any = reinforcement({"name": "own", **grader}, group_size=4)
    method["reinforcement"] |= {"tools": [{"type": "python"}]}
    job: Any = jobs.create(model="tiny", training_file=training_file, method=method).to_dict()
    assert type(FineTuningJob.model_validate(job).method.reinforcement.grader) is kind  # type: ignore[union-attr]
    assert "rule" not in job["method"]["reinforcement"]["grader"]
    assert job["method"]["reinforcement"]["tools"][0]["name"] == "python"


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ("Rate it.", "score_model"),
        ([{"type": "input_text", "text": "Rate it."}, "Please."], "score_model"),
        ({"type": "text", "text": "Rate it."}, "python"),
    ],
    ids=["text", "openai's part", "plain part"],
)
def test_judges_are_openais_own_as_far_as_their_messages_are(content: Any, kind: str) -> None:
    judge = {"type": "score_model", "model": "large", "input": [{"role": "user", "content": content}]}
    method = METHOD.dump_python(METHOD.validate_python(reinforcement(judge)), mode="json")
    answer = in_openai_terms(method)
    assert OpenAIMethod.model_validate(answer).reinforcement is not None
    assert answer["reinforcement"]["grader"]["type"] == kind
    assert from_openai_terms({"method": answer})["method"] == (
        method if kind == "score_model" else {**method, "reinforcement": _named(method["reinforcement"])}
    )


def _named(settings: dict[str, Any]) -> dict[str, Any]:
    """A stand-in needs a name: the rule's type if it has none."""
    return {**settings, "grader": {**settings["grader"], "name": settings["grader"]["type"]}}


def test_jobs_are_listed_over_pages_and_by_metadata(openai_client: OpenAI, training_file: str) -> None:
    ids = [create(openai_client, training_file, metadata={"n": str(n % 2)}).id for n in range(5)]
    assert [job.id for job in openai_client.fine_tuning.jobs.list(limit=2)] == ids[::-1]
    odd = openai_client.fine_tuning.jobs.list(metadata={"n": "1"})
    assert [job.id for job in odd] == [ids[3], ids[1]]
    plain = openai_client.fine_tuning.jobs.list(extra_query={"metadata": "null"})
    assert [job.id for job in plain] == []


def test_a_job_is_paused_resumed_and_cancelled(openai_client: OpenAI, training_file: str) -> None:
    job = create(openai_client, training_file)
    jobs = openai_client.fine_tuning.jobs
    assert jobs.pause(job.id).status == "paused"
    assert jobs.resume(job.id).status == "queued"
    assert jobs.cancel(job.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError, match="is already cancelled") as caught:
        jobs.resume(job.id)
    assert caught.value.code == "invalid_state"


def test_events_are_listed_over_pages(openai_client: OpenAI, database: Database, training_file: str) -> None:
    job = create(openai_client, training_file)
    with database.transaction() as session:
        entries = [HistoryEntry("metrics", f"Step {n}", data={"step": n}) for n in range(1, 4)]
        history.append(session, job.id, *entries)
    events = list(openai_client.fine_tuning.jobs.list_events(job.id, limit=2))
    assert [event.message for event in events] == [
        "Step 3",
        "Step 2",
        "Step 1",
        "The job is queued.",
        f"Created fine-tuning job: {job.id}",
    ]
    assert events[0].data == {"step": 3}
    assert {event.type for event in events} == {"metrics", "message"}


def test_checkpoints_are_listed_over_pages(
    openai_client: OpenAI, settings: Settings, database: Database
) -> None:
    job_id = add_job(database, JobState.RUNNING)
    ids = [add_checkpoint(settings, database, job_id, step, b"w") for step in (10, 20, 30)]
    points = list(openai_client.fine_tuning.jobs.checkpoints.list(job_id, limit=2))
    assert [point.id for point in points] == ids[::-1]
    assert [point.step_number for point in points] == [30, 20, 10]
    assert points[0].metrics.step == 30


def test_results_are_fetched_as_files(openai_client: OpenAI, settings: Settings, database: Database) -> None:
    job_id = add_job(database, JobState.SUCCEEDED, fine_tuned_model="ft:tiny:tenant-a::x")
    add_artifact(settings, database, job_id, "metrics", b"step,reward\n1,0.5\n")
    add_artifact(settings, database, job_id, "adapter", b"weights")
    files = openai_client.fine_tuning.jobs.retrieve(job_id).result_files
    assert [openai_client.files.content(file).read() for file in files] == [
        b"step,reward\n1,0.5\n",
        b"weights",
    ]


def test_models_are_listed_read_and_deleted(
    openai_client: OpenAI, settings: Settings, database: Database
) -> None:
    name = "ft:org/base:tenant-a:demo:x"
    add_job(database, JobState.SUCCEEDED, fine_tuned_model=name)
    assert [model.id for model in openai_client.models.list()] == ["tiny", name]
    assert openai_client.models.retrieve(name).owned_by == "tenant-a"
    assert openai_client.models.delete(name).deleted is True
    with pytest.raises(openai.NotFoundError) as caught:
        openai_client.models.retrieve(name)
    assert caught.value.code == "model_not_found"


def test_a_refused_job_names_the_field(openai_client: OpenAI, training_file: str, database: Database) -> None:
    method: Any = reinforcement(group_size=1)
    with pytest.raises(openai.BadRequestError) as caught:
        openai_client.fine_tuning.jobs.create(model="tiny", training_file=training_file, method=method)
    assert caught.value.param == "method.reinforcement.hyperparameters.group_size"
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id
    assert num_jobs(database) == 0


def test_a_retried_post_finds_the_job_it_made(
    openai_client: OpenAI, training_file: str, database: Database
) -> None:
    first = create(openai_client, training_file)
    retry = {"x-stainless-retry-count": "1"}
    again = create(openai_client, training_file, extra_headers=retry)
    assert again.id == first.id
    with database.reading() as session:
        assert session.scalars(select(Job.id)).all() == [first.id]
        assert session.scalars(select(IdempotencyKey.job_id)).all() == [first.id]


def test_added_routes_are_reached_through_the_client(openai_client: OpenAI, training_file: str) -> None:
    job = create(openai_client, training_file)
    page: Any = openai_client.get(f"/fine_tuning/jobs/{job.id}/metrics", cast_to=object)
    assert page == {"object": "list", "data": [], "has_more": False}
