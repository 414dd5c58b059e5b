"""Ids of another tenant in bodies, queries and headers: they are treated as unknown ids."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from service.jobs.model import names
from service.jobs.model.states import JobState
from service.platform.db import Database
from service.platform.ids import new_id
from service.platform.tables.core import Base, Job
from service.settings import Settings
from tests.service.job_samples import add_checkpoint, reinforcement, request
from tests.service.web.tenancy import GRADERS, IDEMPOTENCY_KEY, JOBS, OTHER, World, snapshot, world

Probe = dict[str, Any]
"""Arguments of a request for httpx, with `…` in place of the id."""


def job(**more: Any) -> Probe:
    return {"method": "POST", "url": JOBS, "json": {**request("{other_file}"), **more}}


def query(url: str, **params: str) -> Probe:
    return {"method": "GET", "url": url, "params": params}


def retaining(**kept: str) -> dict[str, Any]:
    method = reinforcement()
    method["reinforcement"]["retention"] = [{"name": "kept", **kept}]
    return method


OWN_JOB = f"{JOBS}/{{other_job}}"
PROBES: dict[str, tuple[str, Probe]] = {
    "the training file of a job": ("unused_file", job(training_file="…")),
    "a result as training file": ("metrics", job(training_file="…")),
    "the validation file of a job": ("unused_file", job(validation_file="…")),
    "a retention set": ("unused_file", job(method=retaining(file="…"))),
    "the model of a job": ("model", job(model="…")),
    "a checkpoint as model": ("model", job(model="…:ckpt-step-5")),
    "the training file of a check": (
        "unused_file",
        {**job(training_file="…"), "url": f"{JOBS}/validate"},
    ),
    "the model of a check": ("model", {**job(model="…"), "url": f"{JOBS}/validate"}),
    "the model of a grader": (
        "model",
        job(method=reinforcement({"type": "reward_model", "name": "r", "model": "…"})),
    ),
    "the place in the list of files": ("file", query("/v1/files", after="…")),
    "the place in the list of jobs": ("queued", query(JOBS, after="…")),
    "the place in the list of events": ("event", query(f"{OWN_JOB}/events", after="…")),
    "the place in the list of checkpoints": (
        "succeeded_checkpoint",
        query(f"{OWN_JOB}/checkpoints", after="…"),
    ),
    "the checkpoint of an adapter": ("succeeded_checkpoint", query(f"{OWN_JOB}/adapter", checkpoint="…")),
    "a checkpoint below an own job": (
        "succeeded_checkpoint",
        query(f"{OWN_JOB}/checkpoints/…/content"),
    ),
    "an own checkpoint below a job": ("succeeded", query(f"{JOBS}/…/checkpoints/{{own_checkpoint}}/content")),
}


@pytest.fixture
def found(settings: Settings, database: Database) -> Iterator[World]:
    with world(settings, database) as made:
        made.ids["own_checkpoint"] = add_checkpoint(settings, database, made.ids["other_job"], 5, b"mine")
        yield made


def filled(value: Any, ids: dict[str, str], given: str) -> Any:
    """The probe with ids in it."""
    if isinstance(value, dict):
        return {name: filled(inner, ids, given) for name, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, ids, given) for inner in value]
    if not isinstance(value, str):
        return value
    for name in ("other_file", "other_job", "own_checkpoint"):
        value = value.replace(f"{{{name}}}", ids[name])
    return value.replace("…", given)


def unknown_twin(name: str, one: str) -> str:
    """An unknown id of the same kind."""
    if name == "model":
        return names.fine_tuned_model("tiny", "tenant-a", "demo", new_id("ftjob"))
    if name == "event":
        return names.event_id(new_id("ftjob"), 1)
    prefix = one[: one.index("_" if "_" in one[:8] else "-") + 1]
    return new_id(prefix[:-1], prefix[-1])


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_foreign_id_in_a_body_is_treated_as_unknown(found: World) -> None:
    before, counts = snapshot(found), num_rows(found.database)
    wrong = {}
    with found.client("other") as client:
        for what, (name, probe) in PROBES.items():
            real = found.ids[name]
            unknown = unknown_twin(name, real)
            answers = []
            for given in (real, unknown):
                answer = client.request(**filled(probe, found.ids, given))
                answers.append((answer.status_code, answer.text.replace(given, "…")))
            is_refused = answers[0][0] in (400, 404) or '"valid":false' in answers[0][1]
            if answers[0] != answers[1] or not is_refused:
                wrong[what] = answers
    assert wrong == {}
    assert snapshot(found) == before
    assert num_rows(found.database) == counts


def num_rows(database: Database) -> dict[str, int | None]:
    """Rows of every table: a refused request adds none, even for its own tenant."""
    with database.reading() as session:
        tables = Base.metadata.sorted_tables
        return {one.name: session.scalar(select(func.count()).select_from(one)) for one in tables}


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_another_tenants_idempotency_key_and_retried_request_find_nothing(found: World) -> None:
    """The key is the owner's, with the owner's very body; its answer would be the owner's job."""
    before = snapshot(found)
    theirs = request(found.ids["unused_file"])
    mine = request(found.ids["other_file"])
    headers = {"idempotency-key": IDEMPOTENCY_KEY}
    with found.client("other") as client:
        refused = client.post(JOBS, json=theirs, headers=headers)
        retried = client.post(JOBS, json=theirs, headers={"x-stainless-retry-count": "1"})
        created = client.post(JOBS, json=mine, headers=headers)
    assert [refused.status_code, retried.status_code] == [400, 400]
    assert (created.status_code, created.headers.get("idempotency-replayed")) == (200, None)
    assert created.json()["organization_id"] == OTHER
    assert snapshot(found) == before


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_an_event_number_of_another_tenant_only_counts_in_ones_own_job(found: World) -> None:
    with found.client("other") as client:
        url = f"{JOBS}/{found.ids['other_job']}/stream"
        answers = [client.get(url, headers={"last-event-id": number}) for number in ("1", "2", "999")]
        foreign = client.get(f"{JOBS}/{found.ids['succeeded']}/stream", headers={"last-event-id": "999"})
    assert [answer.status_code for answer in answers] == [200, 204, 204]
    assert foreign.status_code == 404


INTERNAL = ("tenant", "tenant_id", "state", "status", "fence", "lease_owner", "created_at", "id", "priority")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_fields_that_the_service_sets_are_refused_in_every_body(found: World) -> None:
    before, wrong = snapshot(found), {}
    with found.client("owner") as client:
        for name in INTERNAL:
            for where, answer in bodies_with(client, found.ids["file"], name).items():
                param = f"method.{name}" if where == "method" else name
                if refusal(answer) != (400, param, "unknown_field"):
                    wrong[where, name] = answer.text
    assert wrong == {}
    assert snapshot(found) == before


def bodies_with(client: httpx.Client, file_id: str, name: str) -> dict[str, httpx.Response]:
    """The answers to bodies that hold one field more."""
    grader = {"type": "string_check", "input": "a", "reference": "b", "operation": "eq"}
    more = {name: "tenant-b"}
    form: Any = {"files": {"file": ("a.jsonl", b"{}\n")}, "data": {"purpose": "fine-tune", **more}}
    return {
        "job": client.post(JOBS, json={**request(file_id), **more}),
        "check": client.post(f"{JOBS}/validate", json={**request(file_id), **more}),
        "method": client.post(JOBS, json=request(file_id, method={**reinforcement(), **more})),
        "file": client.post("/v1/files", **form),
        "grader": client.post(f"{GRADERS}/validate", json={"grader": grader, **more}),
        "run": client.post(f"{GRADERS}/run", json={"grader": grader, "model_sample": "a", **more}),
    }


def refusal(answer: httpx.Response) -> tuple[int, str | None, str]:
    error = answer.json()["error"]
    return answer.status_code, error["param"], error["code"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_query_names_no_tenant(found: World) -> None:
    """Parameters that no route has change nothing of whose things are listed."""
    with found.client("other") as client:
        mine = client.get(JOBS).json()
        listed = client.get(JOBS, params={"tenant": "tenant-a", "organization_id": "tenant-a"}).json()
    assert listed == mine
    assert [one["id"] for one in listed["data"]] == [found.ids["other_job"]]
    with found.database.reading() as session:
        assert session.get_one(Job, found.ids["other_job"]).state == JobState.SUCCEEDED.value
