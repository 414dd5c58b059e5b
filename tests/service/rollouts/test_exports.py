"""Rollouts as datasets: the best answers as a `supervised` file, good and bad ones as TRL's preferences."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.platform.db import Database
from service.platform.tables.core import Job
from service.rollouts import repository
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.job_samples import MODEL, jsonl, make_model, upload
from tests.service.rollouts.rollout_samples import (
    EPISODES,
    ROWS,
    add_graded_job,
    add_group,
    completion,
    scored,
)

pytestmark = on_sqlite  # nothing here depends on the database

JOBS = "/v1/fine_tuning/jobs"
CUT = {"finish": "length"}


def rows_of(client: TestClient, job_id: str, kind: str, **params: Any) -> list[dict[str, Any]]:
    answer = client.get(f"{JOBS}/{job_id}/rollouts/{kind}.jsonl", params=params)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("application/jsonl")
    assert answer.headers["content-disposition"] == f'attachment; filename="{job_id}-{kind}.jsonl"'
    return [json.loads(line) for line in answer.text.splitlines()]


@pytest.fixture
def job_id(settings: Settings, database: Database) -> str:
    """Row 2 is in steps 1 and 2, row 0 in step 2."""
    job_id = add_graded_job(settings, database)
    early = [scored("good", 1.0, 1.0), scored("bad", 0.0, 0.0), scored("cut", 1.0, 1.0, **CUT)]
    add_group(database, job_id, 1, 0, early, row=2)
    late = [
        scored("good", 1.0, 1.0),
        scored("fair", 1.0, 0.0),
        scored("", 1.0, 1.0),
        scored("none", None, 1.0),
    ]
    add_group(database, job_id, 2, 0, late, row=2)
    acted = scored("acted", 1.0, 1.0, episode=EPISODES[0]["episode"])
    tools = [scored("tools", 1.0, 1.0, turns=2), scored("formed", 0.0, 1.0), acted]
    add_group(database, job_id, 2, 1, tools, row=0)
    return job_id


def answered(number: int, text: str) -> dict[str, Any]:
    return {"messages": [*ROWS[number]["messages"], {"role": "assistant", "content": text}]}


def test_the_best_answer_of_each_prompt_is_a_supervised_row(client: TestClient, job_id: str) -> None:
    assert rows_of(client, job_id, "sft") == [answered(2, "good")]


def test_a_lower_min_reward_adds_answers_and_no_text_twice(client: TestClient, job_id: str) -> None:
    found = rows_of(client, job_id, "sft", min_reward=0.2, per_prompt=16)
    assert found == [answered(0, "formed"), answered(2, "good"), answered(2, "fair")]


def test_steps_and_parts_narrow_the_export(client: TestClient, job_id: str) -> None:
    found = rows_of(client, job_id, "sft", from_step=2, not_fired="format", min_reward=0)
    assert found == [answered(2, "fair")]


def test_the_exported_answers_are_accepted_as_a_supervised_training_file(
    client: TestClient, settings: Settings, job_id: str
) -> None:
    make_model(settings.home)
    content = client.get(f"{JOBS}/{job_id}/rollouts/sft.jsonl", params={"min_reward": 0.2}).content
    job = {"model": MODEL, "training_file": upload(client, content), "method": {"type": "supervised"}}
    checked = client.post(f"{JOBS}/validate", json=job).json()
    assert (checked["valid"], checked["problems"]) == (True, [])
    assert client.post(JOBS, json=job).status_code == 200


def test_pairs_are_conversational_preferences_with_their_margin(client: TestClient, job_id: str) -> None:
    (pair,) = rows_of(client, job_id, "dpo")
    assert pair == {
        "prompt": ROWS[2]["messages"],
        "chosen": [{"role": "assistant", "content": "good"}],
        "rejected": [{"role": "assistant", "content": "bad"}],
        "margin": 1.0,
    }


def test_more_pairs_of_a_prompt_are_added_down_to_the_margin(client: TestClient, job_id: str) -> None:
    two = rows_of(client, job_id, "dpo", from_step=2, per_prompt=16)
    assert [(pair["chosen"][0]["content"], pair["rejected"][0]["content"]) for pair in two] == [
        ("good", "fair")
    ]
    assert two[0]["margin"] == pytest.approx(0.2)
    answer = client.get(f"{JOBS}/{job_id}/rollouts/dpo.jsonl", params={"from_step": 2, "min_margin": 0.5})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "min_margin")


def test_prompts_without_messages_and_rows_with_tools_keep_their_form(
    client: TestClient, settings: Settings, database: Database
) -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    content = jsonl({"prompt": "2+2=", "answer": "4"}, {**ROWS[1], "tools": tools})
    job_id = add_graded_job(settings, database, content=content)
    for number in (0, 1):
        add_group(database, job_id, 1, number, [scored("4", 1.0, 1.0), scored("5", 0.0, 0.0)], row=number)
    plain, with_tools = rows_of(client, job_id, "sft")
    assert plain == {"prompt": "2+2=", "completion": "4"}
    assert with_tools == {**answered(1, "4"), "tools": tools}
    plain, with_tools = rows_of(client, job_id, "dpo")
    assert plain == {"prompt": "2+2=", "chosen": "4", "rejected": "5", "margin": 1.0}
    assert with_tools["tools"] == tools


def test_many_rows_come_in_the_order_of_the_dataset(
    client: TestClient, settings: Settings, database: Database
) -> None:
    content = b"\n".join(line for line in jsonl(*(ROWS * 60)).splitlines()) + b"\n\n"
    job_id = add_graded_job(settings, database, content=content)
    for number in reversed(range(240)):
        add_group(
            database, job_id, 1 + number % 3, number, [scored(f"answer {number}", 1.0, 1.0)], row=number
        )
    found = rows_of(client, job_id, "sft")
    assert [row["messages"][-1]["content"] for row in found] == [f"answer {n}" for n in range(240)]
    assert [row["messages"][0] for row in found] == [row["messages"][0] for row in ROWS] * 60


def test_an_export_without_good_answers_names_the_best_reward(client: TestClient, job_id: str) -> None:
    answer = client.get(f"{JOBS}/{job_id}/rollouts/sft.jsonl", params={"min_reward": 5})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "min_reward", "nothing_to_export")
    assert error["message"].endswith("has a reward of 5: the best one has 1.")


@pytest.mark.database("sqlite", "postgresql")
def test_an_export_without_examples_is_refused_before_any_group_is_read(
    client: TestClient, settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = add_graded_job(settings, database)
    add_group(database, job_id, 1, 0, [completion(0.5), completion(None)], row=0)
    add_group(database, job_id, 1, 1, [completion(0.75), completion(0.75)], row=1)
    add_group(database, job_id, 2, 0, [completion(0.25)], split="validation", row=0)
    monkeypatch.setattr(repository, "batches", None)

    def refusal(kind: str, **params: Any) -> str:
        answer = client.get(f"{JOBS}/{job_id}/rollouts/{kind}.jsonl", params=params)
        assert answer.status_code == 400, answer.text
        return str(answer.json()["error"]["message"])

    equal = "min_margin: no two completions of a prompt have different rewards"
    assert refusal("dpo") == f"{equal}."
    assert refusal("dpo", from_step=3) == f"{equal}."
    low = "min_reward: no completion has a reward of 1: "
    assert refusal("sft") == f"{low}the best one has 0.75."
    assert refusal("sft", from_step=3) == f"{low}none is scored."
    add_group(database, job_id, 3, 0, [completion(0.25, text="b")], row=0)
    assert refusal("dpo", min_margin=0.5) == f"{equal} by 0.5 or more."
    monkeypatch.undo()
    (pair,) = client.get(f"{JOBS}/{job_id}/rollouts/dpo.jsonl?min_margin=0.25").text.splitlines()
    assert json.loads(pair)["margin"] == 0.25


def test_an_export_of_truncated_answers_says_that_none_is_complete(
    client: TestClient, settings: Settings, database: Database
) -> None:
    job_id = add_graded_job(settings, database)
    cut = [scored("4 and", reward, 1.0, finish_reason="length") for reward in (1.0, 0.0)]
    add_group(database, job_id, 1, 0, cut)
    messages = [
        client.get(f"{JOBS}/{job_id}/rollouts/{kind}.jsonl").json()["error"]["message"]
        for kind in ("sft", "dpo")
    ]
    assert messages == [
        "min_reward: no selected, complete answer has a reward of 1: none is complete and scored.",
        "min_margin: no prompt has a complete answer whose reward is higher than another's.",
    ]


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_an_export_of_episodes_says_that_they_are_left_out(
    client: TestClient, settings: Settings, database: Database, kind: str
) -> None:
    job_id = add_graded_job(settings, database)
    add_group(database, job_id, 1, 0, [scored("4", 1.0, 1.0, turns=2), scored("5", 0.0, 0.0, turns=2)])
    answer = client.get(f"{JOBS}/{job_id}/rollouts/{kind}.jsonl")
    assert answer.json()["error"]["code"] == "nothing_to_export"
    left_out = "Completions that called tools or acted in an environment are left out."
    assert answer.json()["error"]["message"].endswith(left_out)


def test_a_deleted_training_file_is_named(client: TestClient, job_id: str) -> None:
    file_id = client.get(f"{JOBS}/{job_id}").json()["training_file"]
    assert client.delete(f"/v1/files/{file_id}").status_code == 200
    for kind in ("sft", "dpo"):
        answer = client.get(f"{JOBS}/{job_id}/rollouts/{kind}.jsonl")
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["code"]) == (400, "training_file", "file_not_found")
        assert file_id in error["message"]
    assert client.get(f"{JOBS}/{job_id}/rollouts.jsonl").status_code == 200


def test_a_missing_split_is_refused(client: TestClient, job_id: str) -> None:
    answer = client.get(f"{JOBS}/{job_id}/rollouts/sft.jsonl", params={"split": "validation"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "split")


def test_held_out_rows_of_a_split_are_found_in_the_training_file(
    client: TestClient, database: Database, job_id: str
) -> None:
    with database.transaction() as session:
        session.get_one(Job, job_id).validation_split = 0.5
    add_group(database, job_id, 2, 0, [scored("good", 1.0, 1.0)], row=1, split="validation")
    assert rows_of(client, job_id, "sft", split="validation") == [answered(1, "good")]
