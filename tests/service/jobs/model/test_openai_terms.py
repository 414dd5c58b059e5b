"""What a job answers as its grader is understood wherever a grader is sent."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import TypeAdapter

from grpo_engine.graders import Grader
from service.graders.schemas import SentGrader
from service.jobs.model.openai_terms import in_openai_terms
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.grader_samples import NUMERIC, OPENAIS_GRADERS, OWN_GRADERS
from tests.service.job_samples import METHOD, create, make_model, reinforcement, upload

pytestmark = on_sqlite  # what a grader means is no matter of the database

GRADERS = "/v1/fine_tuning/alpha/graders"
JUDGE = {
    "type": "score_model",
    "model": "large",
    "input": [{"role": "user", "content": {"type": "text", "text": "Rate it."}}],
}
ALL: list[dict[str, Any]] = [*OWN_GRADERS, *(grader for _, grader in OPENAIS_GRADERS), JUDGE]
READER: TypeAdapter[Any] = TypeAdapter(SentGrader)


def as_answered(grader: dict[str, Any]) -> dict[str, Any]:
    """As `GET …/jobs/{id}` shows it."""
    method = METHOD.dump_python(METHOD.validate_python(reinforcement(grader)), mode="json")
    return dict(in_openai_terms(method)["reinforcement"]["grader"])


def test_the_samples_are_all_the_types_there_are() -> None:
    known = TypeAdapter(Grader).json_schema()["discriminator"]["mapping"]
    # the two that need a dataset or an environment of their own have tests beside theirs
    assert {grader["type"] for grader in ALL} == set(known) - {"reasoning_gym", "environment"}


@pytest.mark.parametrize("grader", ALL, ids=lambda grader: str(grader["type"]))
def test_every_type_is_read_back_as_itself_from_what_a_job_answers(grader: dict[str, Any]) -> None:
    answered = as_answered({"name": "mine", **grader})
    assert READER.validate_python(answered) == READER.validate_python({"name": "mine", **grader})


@pytest.mark.parametrize("grader", OWN_GRADERS, ids=lambda grader: str(grader["type"]))
def test_a_stand_in_grader_is_validated_as_its_own_type(client: TestClient, grader: dict[str, Any]) -> None:
    answers = [
        client.post(f"{GRADERS}/validate", json={"grader": each})
        for each in ({**grader, "name": "mine"}, as_answered({**grader, "name": "mine"}))
    ]
    assert answers[1].json() == answers[0].json()


def test_a_stand_in_grader_is_run_as_its_own_type(client: TestClient) -> None:
    body = {"grader": as_answered(NUMERIC), "model_sample": "It is 7.", "item": {"answer": "7"}}
    answer = client.post(f"{GRADERS}/run", json=body).json()
    assert (answer["reward"], answer["metadata"]["type"]) == (1.0, "numeric")


def test_a_fault_of_an_answered_grader_is_named_at_its_field(client: TestClient) -> None:
    answer = client.post(f"{GRADERS}/validate", json={"grader": as_answered(NUMERIC) | {"tag": 3}})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "grader.tag"


def test_a_clone_takes_an_answered_grader_in_the_place_of_a_python_one(
    client: TestClient, settings: Settings
) -> None:
    make_model(settings.home)
    python = {"type": "python", "source": "def grade(sample, item):\n    return 1.0", "image_tag": "x"}
    job = create(client, upload(client), method=reinforcement(python))
    patch = {"method": {"reinforcement": {"grader": as_answered(NUMERIC)}}}
    cloned = client.post(f"/v1/fine_tuning/jobs/{job['id']}/clone", json=patch)
    assert cloned.status_code == 200, cloned.text
    assert cloned.json()["method"]["reinforcement"]["grader"] == as_answered({**NUMERIC, "name": "numeric"})
