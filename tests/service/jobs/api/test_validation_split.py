"""`validation_split`: checked with the rows of each side, kept in clones and manifests."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from grpo_engine.config.validation_split import held_out_rows, prompt_digest
from service.jobs.results.manifest import differences, request_of
from service.platform.db import Database
from service.platform.tables.core import Job
from tests.conftest import on_sqlite
from tests.service.files.file_samples import refusal
from tests.service.job_samples import (
    GRADER,
    create,
    jsonl,
    num_jobs,
    reinforcement,
    report_machine,
    request,
    row,
)
from tests.service.job_samples import upload as uploaded

pytestmark = pytest.mark.usefixtures("model")

JOBS = "/v1/fine_tuning/jobs"
ROWS = [row(f"What is {n}+{n}?", str(2 * n)) for n in range(20)]


def checked(client: TestClient, rows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    answer = client.post(f"{JOBS}/validate", json=request(uploaded(client, jsonl(*rows)), **more))
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def held_out(rows: list[dict[str, Any]], split: float, seed: int) -> list[int]:
    return sorted(held_out_rows([prompt_digest(one) for one in rows], split, seed))


@on_sqlite
@pytest.mark.parametrize(("split", "num_held_out"), [(0.1, 2), (5, 5)])
def test_the_check_counts_the_rows_of_both_sides(client: TestClient, split: float, num_held_out: int) -> None:
    method = reinforcement(prompts_per_step=1, n_epochs=1)
    report = checked(client, ROWS, validation_split=split, method=method)
    assert report["rows"] == {"training": 20 - num_held_out, "validation": num_held_out}
    assert (report["valid"], report["warnings"]) == (True, [])
    assert report["total_steps"] == 20 - num_held_out


def test_a_split_waits_for_a_worker_that_reads_it(client: TestClient, database: Database) -> None:
    report_machine(database)
    job = create(client, uploaded(client, jsonl(*ROWS)), validation_split=0.1)
    assert job["queue"]["reason"] == "waiting for a worker"
    with database.reading() as session:
        assert session.get_one(Job, job["id"]).required_capabilities == "format:2"


def test_a_job_keeps_its_split_in_its_clone_and_its_manifest(client: TestClient) -> None:
    file_id = uploaded(client, jsonl(*ROWS))
    job = create(client, file_id, validation_split=0.1, seed=3)
    assert (job["validation_split"], job["validation_file"]) == (0.1, None)
    assert create(client, file_id, validation_split=4)["validation_split"] == 4
    clone = client.post(f"{JOBS}/{job['id']}/clone", json={}).json()
    assert (clone["validation_split"], clone["seed"]) == (0.1, 3)
    manifest = client.get(f"{JOBS}/{job['id']}/manifest").json()
    assert (manifest["validation_split"], manifest["seed"]) == (0.1, 3)
    other = create(client, file_id, seed=3)
    without = client.get(f"{JOBS}/{other['id']}/manifest").json()
    assert without["validation_split"] is None
    assert [one["field"] for one in differences(manifest, without)] == [
        "configuration_sha256",
        "validation_split",
    ]
    again = client.post(
        JOBS, json=request_of(manifest, {manifest["data"]["training_file"]["sha256"]: file_id})
    )
    assert (again.json()["validation_split"], again.json()["seed"]) == (0.1, 3)


@on_sqlite
def test_a_clone_with_an_own_file_drops_the_split(client: TestClient) -> None:
    job = create(client, uploaded(client, jsonl(*ROWS)), validation_split=0.1)
    own = uploaded(client, jsonl(row("new?", "1")))
    clone = client.post(f"{JOBS}/{job['id']}/clone", json={"validation_file": own}).json()
    assert (clone["validation_file"], clone["validation_split"]) == (own, None)
    again = client.post(f"{JOBS}/{clone['id']}/clone", json={"validation_split": 3}).json()
    assert (again["validation_file"], again["validation_split"]) == (None, 3)


@on_sqlite
@pytest.mark.parametrize(
    ("split", "reason"),
    [(20, "leaves no row to train on"), (0.01, "holds out no row"), (50, "leaves no row to train on")],
)
def test_a_split_with_an_empty_side_is_refused(
    client: TestClient, database: Database, split: float, reason: str
) -> None:
    file_id = uploaded(client, jsonl(*ROWS))
    answer = client.post(JOBS, json=request(file_id, validation_split=split))
    assert refusal(answer) == (400, "validation_split", "invalid_validation_split")
    expected = f"validation_split: {reason}; rows in {file_id}: 20, different prompts: 20"
    assert answer.json()["error"]["message"] == expected
    assert num_jobs(database) == 0


@on_sqlite
@pytest.mark.parametrize("split", [0, 1.5, -1, "0.1", True, [0.1]])
def test_other_values_are_refused_at_the_field(client: TestClient, split: Any) -> None:
    answer = client.post(JOBS, json=request("file-1", validation_split=split))
    assert refusal(answer) == (400, "validation_split", "invalid_value")


@on_sqlite
def test_a_split_and_a_file_contradict_each_other(client: TestClient) -> None:
    answer = client.post(JOBS, json=request("file-1", validation_split=0.1, validation_file="file-2"))
    assert refusal(answer) == (400, "validation_split", "invalid_value")
    assert "either validation_file or validation_split" in answer.json()["error"]["message"]


@on_sqlite
def test_each_side_is_checked_with_the_grader_that_scores_it(client: TestClient) -> None:
    chosen = held_out(ROWS, 3, 7)
    rows = [{**one, "capital": "x"} if n in chosen else one for n, one in enumerate(ROWS)]
    method = reinforcement()
    method["reinforcement"]["eval_grader"] = {**GRADER, "reference": "{{item.capital}}"}
    assert checked(client, rows, validation_split=3, seed=7, method=method)["valid"] is True
    report = checked(client, ROWS, validation_split=3, seed=7, method=method)
    places = [f"training_file[{n + 1}].capital" for n in chosen]
    assert [problem["param"] for problem in report["problems"]] == places


@on_sqlite
def test_a_faulty_row_is_reported_once(client: TestClient) -> None:
    lines = [json.dumps(one) for one in ROWS]
    lines[4:6] = ['{"messages": 1}', '{"prompt": 1}']
    file_id = uploaded(client, "\n".join(lines).encode())
    report = client.post(f"{JOBS}/validate", json=request(file_id, validation_split=3)).json()
    places = [problem["param"] for problem in report["problems"]]
    assert places == ["training_file[5].messages", "training_file[6].prompt"]


@on_sqlite
def test_rows_with_the_same_prompt_stay_together(client: TestClient) -> None:
    report = checked(client, [*ROWS[:10], *ROWS[:10]], validation_split=4, seed=1)
    assert report["rows"] == {"training": 16, "validation": 4}
    warned = {warning["code"] for warning in report["warnings"]}
    assert warned == {"duplicate_rows"}


@on_sqlite
def test_repeated_rows_are_named_by_the_side_that_repeats_them(client: TestClient) -> None:
    rows = [*ROWS[:10], *ROWS[:10]]
    chosen = held_out(rows, 4, seed=1)
    trained = [n for n in range(20) if n not in chosen]
    report = checked(client, rows, validation_split=4, seed=1)
    training, held = (warning["message"] for warning in report["warnings"])
    first, again = trained[0] + 1, trained[8] + 1
    assert training.startswith(
        "training_file: 8 of 16 rows repeat the prompt of an earlier one: "
        f"row {again} repeats training row {first}, "
    )
    pairs = [(chosen[2] + 1, chosen[0] + 1), (chosen[3] + 1, chosen[1] + 1)]
    shown = ", ".join(f"row {line} repeats held-out row {earlier}" for line, earlier in pairs)
    assert held == (
        f"training_file: 2 of 4 held-out rows repeat the prompt of an earlier one: {shown}. "
        "Repeated prompts weigh more."
    )
