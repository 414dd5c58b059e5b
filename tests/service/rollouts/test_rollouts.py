"""The rollouts ledger: groups and completions by step, filter and part, page by page, all as JSON lines."""

import json
from contextlib import ExitStack
from itertools import product
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.jobs.model.states import JobState
from service.platform.db import Database
from service.rollouts.service import search_limit
from service.settings import Settings
from tests.service.job_samples import add_job
from tests.service.jobs.progress.test_series import get
from tests.service.rollouts.rollout_samples import add_graded_job, add_group, completion, scored

JOBS = "/v1/fine_tuning/jobs"


@pytest.fixture
def sampled(database: Database) -> str:
    """A job with three steps of two groups and one of validation."""
    error = {"exact": {"code": "other_error", "message": "m"}}
    job_id = add_job(database, JobState.RUNNING)
    add_group(database, job_id, 1, 0, [completion(0.0), completion(1.0)])
    add_group(database, job_id, 1, 1, [completion(0.0), completion(0.0)], row=1)
    add_group(database, job_id, 2, 0, [completion(1.0), completion(0.5, finish="length")])
    add_group(database, job_id, 2, 1, [completion(1.0), completion(1.0)], row=1)
    add_group(database, job_id, 3, 0, [completion(None, errors=error), completion(0.25), completion(0.125)])
    add_group(database, job_id, 3, 1, [completion(0.0), completion(0.75)], row=1)
    add_group(database, job_id, 3, 0, [completion(0.5)], split="validation")
    return job_id


@pytest.fixture
def graded(settings: Settings, database: Database) -> str:
    """A job whose reward has the parts accuracy and format."""
    job_id = add_graded_job(settings, database)
    add_group(database, job_id, 1, 0, [scored("both", 1.0, 1.0), scored("right", 1.0, 0.0)])
    add_group(database, job_id, 2, 0, [scored("formed", 0.0, 1.0), scored("neither", 0.0, 0.0)])
    add_group(database, job_id, 3, 0, [scored("broken", None, 1.0), scored("half", 0.5, 1.0)])
    return job_id


def places(page: dict[str, Any]) -> list[tuple[str, int, int]]:
    return [(group["split"], group["step"], group["position"]) for group in page["data"]]


def test_messages_are_read_from_their_places_in_the_prompt(
    client: TestClient, settings: Settings, database: Database
) -> None:
    job_id = add_graded_job(settings, database)
    entry = {"label": "test 1 of 1: f(0)", "passed": False, "got": "2", "expected": "1"}
    explained = scored("a", 0.0, 0.0, explanations={"accuracy": [entry]})
    places = [
        {"role": "system", "start": 1, "end": 5, "content": ""},
        {"role": "user", "start": 0, "end": 0, "content": "changed"},
    ]
    extra = {"messages": places, "reference": {"answer": "2", "tests": [1]}}
    add_group(database, job_id, 1, 0, [explained], **extra)
    add_group(database, job_id, 1, 1, [scored("from before these fields", 0.0, 0.0)])
    group, old = get(client, f"{job_id}/rollouts")["data"]
    messages = [{"role": "system", "content": "user"}, {"role": "user", "content": "changed"}]
    assert (group["prompt"], group["messages"]) == ("<user> 0", messages)
    assert group["reference"] == {"answer": "2", "tests": [1]}
    shown = group["completions"][0]["explanations"]["accuracy"]
    assert shown == [{**entry, "score": None, "detail": ""}]
    assert (old["messages"], old["reference"], old["completions"][0]["explanations"]) == ([], {}, {})
    single = get(client, f"{job_id}/rollouts/completions", limit=1)["data"][0]
    assert (single["messages"], single["explanations"]["accuracy"]) == (messages, shown)
    exported = client.get(f"{JOBS}/{job_id}/rollouts.jsonl").text.splitlines()
    assert json.loads(exported[0])["messages"] == messages


def test_rollouts_are_newest_first_page_by_page(client: TestClient, sampled: str) -> None:
    first = get(client, f"{sampled}/rollouts", limit=4)
    second = get(client, f"{sampled}/rollouts", limit=4, after=first["last_id"])
    assert places(first) + places(second) == [
        ("train", 3, 0),
        ("train", 3, 1),
        ("validation", 3, 0),
        ("train", 2, 0),
        ("train", 2, 1),
        ("train", 1, 0),
        ("train", 1, 1),
    ]
    assert (first["has_more"], second["has_more"]) == (True, False)
    shown = first["data"][1]["completions"][1]
    assert (shown["reward"], shown["num_tokens"], shown["finish_reason"]) == (0.75, 3, "stop")
    assert "token_ids" not in shown


GROUPS_BY_QUESTION: list[tuple[dict[str, Any], list[tuple[str, int, int]]]] = [
    ({"step": 2}, [("train", 2, 0), ("train", 2, 1)]),
    ({"split": "validation"}, [("validation", 3, 0)]),
    ({"filter": "no_signal", "split": "train"}, [("train", 2, 1), ("train", 1, 1)]),
    ({"filter": "truncated"}, [("train", 2, 0)]),
    ({"filter": "grader_error"}, [("train", 3, 0)]),
    ({"filter": "best", "limit": 2}, [("train", 2, 1), ("train", 2, 0)]),
    ({"filter": "worst", "limit": 2}, [("train", 1, 1), ("train", 3, 0)]),
    ({"from_step": 2, "to_step": 2}, [("train", 2, 0), ("train", 2, 1)]),
    ({"to_step": 1}, [("train", 1, 0), ("train", 1, 1)]),
    ({"from_step": 3, "split": "train"}, [("train", 3, 0), ("train", 3, 1)]),
]


def test_rollouts_are_filtered(client: TestClient, sampled: str) -> None:
    for params, expected in GROUPS_BY_QUESTION:
        assert places(get(client, f"{sampled}/rollouts", **params)) == expected, params


def test_the_export_has_every_group_with_its_tokens(client: TestClient, sampled: str) -> None:
    answer = client.get(f"{JOBS}/{sampled}/rollouts.jsonl")
    groups = [json.loads(line) for line in answer.text.splitlines()]
    assert [(group["step"], group["position"]) for group in groups] == [
        (1, 0),
        (1, 1),
        (2, 0),
        (2, 1),
        (3, 0),
        (3, 1),
        (3, 0),
    ]
    assert groups[0]["completions"][0]["token_ids"] == [1, 2, 3]


def test_a_groups_mean_excludes_unscorable_completions(client: TestClient, sampled: str) -> None:
    (group,) = get(client, f"{sampled}/rollouts", step=3, filter="grader_error")["data"]
    assert group["mean_reward"] == 0.1875
    assert [one["reward"] for one in group["completions"]] == [None, 0.25, 0.125]
    assert group["completions"][0]["errors"]["exact"]["message"] == "m"


@pytest.mark.parametrize("order", ["best", "worst"])
def test_groups_by_reward_are_paged(client: TestClient, sampled: str, order: str) -> None:
    whole = get(client, f"{sampled}/rollouts", filter=order)
    means = [group["mean_reward"] for group in whole["data"]]
    assert means == sorted(means, reverse=order == "best")
    assert len(means) == 7
    found: list[str] = []
    page: dict[str, Any] = {"has_more": True}
    while page["has_more"]:
        after = {"after": found[-1]} if found else {}
        page = get(client, f"{sampled}/rollouts", filter=order, limit=3, **after)
        found += [group["id"] for group in page["data"]]
    assert found == [group["id"] for group in whole["data"]]


def ids(page: dict[str, Any]) -> list[str]:
    return [one["id"].removeprefix("completion-") for one in page["data"]]


def test_completions_are_newest_first_page_by_page(client: TestClient, sampled: str) -> None:
    url = f"{sampled}/rollouts/completions"
    first = get(client, url, split="train", limit=4)
    second = get(client, url, split="train", limit=4, after=first["last_id"])
    third = get(client, url, split="train", after=second["last_id"])
    assert ids(first) == ["train-3-0-0", "train-3-0-1", "train-3-0-2", "train-3-1-0"]
    assert ids(second) == ["train-3-1-1", "train-2-0-0", "train-2-0-1", "train-2-1-0"]
    assert ids(third) == ["train-2-1-1", "train-1-0-0", "train-1-0-1", "train-1-1-0", "train-1-1-1"]
    assert [page["has_more"] for page in (first, second, third)] == [True, True, False]


def test_a_completion_has_its_groups_fields_and_its_own(client: TestClient, sampled: str) -> None:
    (cut,) = get(client, f"{sampled}/rollouts/completions", filter="truncated")["data"]
    group = {"rollout_id": "rollout-train-2-0", "step": 2, "split": "train", "position": 0, "index": 1}
    own = {"reward": 0.5, "mean_reward": 0.75, "finish_reason": "length", "num_tokens": 3, "text": "a"}
    assert cut == cut | group | own
    assert "token_ids" not in cut


COMPLETIONS_BY_QUESTION: list[tuple[dict[str, Any], list[str]]] = [
    ({"filter": "no_signal", "step": 2}, ["train-2-1-0", "train-2-1-1"]),
    ({"filter": "grader_error"}, ["train-3-0-0"]),
    ({"filter": "best", "limit": 2}, ["train-2-0-0", "train-2-1-0"]),
    ({"filter": "worst", "limit": 2}, ["train-3-1-0", "train-1-0-0"]),
    ({"split": "validation"}, ["validation-3-0-0"]),
]


def test_completions_are_filtered(client: TestClient, sampled: str) -> None:
    for params, expected in COMPLETIONS_BY_QUESTION:
        assert ids(get(client, f"{sampled}/rollouts/completions", **params)) == expected, params


def test_completions_by_reward_continue_after_the_last_one(client: TestClient, sampled: str) -> None:
    url = f"{sampled}/rollouts/completions"
    whole = ids(get(client, url, filter="best"))
    assert len(whole) == 13  # the unscorable one has no place among them
    first = get(client, url, filter="best", limit=5)
    assert ids(first) + ids(get(client, url, filter="best", after=first["last_id"])) == whole


TEXTS_BY_QUESTION: list[tuple[dict[str, Any], list[str]]] = [
    ({"fired": "accuracy", "not_fired": "format"}, ["right"]),
    ({"fired": "format", "not_fired": "accuracy"}, ["formed"]),
    ({"fired": ["accuracy", "format"]}, ["half", "both"]),
    ({"fired": "accuracy,format", "fired_above": 0.5}, ["both"]),
    ({"not_fired": "accuracy", "fired_above": 0.5}, ["half", "formed", "neither"]),
    ({"fired": "format", "filter": "best", "limit": 2}, ["both", "half"]),
]


def test_completions_where_one_part_fired_and_another_did_not(client: TestClient, graded: str) -> None:
    for params, expected in TEXTS_BY_QUESTION:
        page = get(client, f"{graded}/rollouts/completions", **params)
        assert [one["text"] for one in page["data"]] == expected, params


def test_a_group_is_selected_if_one_of_its_completions_is(client: TestClient, graded: str) -> None:
    page = get(client, f"{graded}/rollouts", fired="accuracy", not_fired="format")
    assert places(page) == [("train", 1, 0)]
    exported = client.get(f"{JOBS}/{graded}/rollouts.jsonl", params={"fired": "format", "to_step": 2}).text
    assert [json.loads(line)["step"] for line in exported.splitlines()] == [1, 2]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"fired": "acuracy"}, "fired", "unknown_part"),
    ({"fired": "format", "not_fired": "nothing"}, "not_fired", "unknown_part"),
    ({"step": 1, "to_step": 2}, "step", "invalid_value"),
    ({"from_step": 3, "to_step": 2}, "from_step", "invalid_value"),
    ({"filter": "nice"}, "filter", "invalid_value"),
    ({"fired_above": "nan"}, "fired_above", "invalid_value"),
]


def test_impossible_selections_are_refused(client: TestClient, graded: str) -> None:
    paths = ("rollouts", "rollouts/completions", "rollouts.jsonl")
    for path, (params, param, code) in product(paths, REFUSED):
        answer = client.get(f"{JOBS}/{graded}/{path}", params=params)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["code"]) == (400, param, code), params
        if code == "unknown_part":
            assert error["message"].endswith("its parts are accuracy, format.")


@pytest.mark.parametrize(
    "after", ["completion-train-9-0-0", "completion-train-3-0-7", "rollout-train-3-0", ""]
)
@pytest.mark.parametrize("filter", [None, "best"])
def test_an_unknown_completion_is_refused_as_cursor(
    client: TestClient, sampled: str, after: str, filter: str | None
) -> None:
    params = {"after": after} | ({"filter": filter} if filter else {})
    answer = client.get(f"{JOBS}/{sampled}/rollouts/completions", params=params)
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "after")


def test_the_number_of_concurrent_searches_is_limited(client: TestClient, sampled: str) -> None:
    url = f"{JOBS}/{sampled}/rollouts"
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(search_limit.slot("tenant-a"))
        answer = client.get(url, params={"filter": "best"})
        assert (answer.status_code, "retry-after" in answer.headers) == (429, True)
        assert client.get(url, params={"filter": "best", "step": 1}).status_code == 200
    assert client.get(url, params={"filter": "best"}).status_code == 200


def test_the_overview_names_steps_and_parts(client: TestClient, sampled: str, graded: str) -> None:
    assert get(client, f"{sampled}/rollouts/overview") == {
        "object": "fine_tuning.job.rollout_overview",
        "parts": ["exact"],
        "data": [
            {"split": "train", "steps": [1, 2, 3], "groups": [2, 2, 2]},
            {"split": "validation", "steps": [3], "groups": [1]},
        ],
    }
    assert get(client, f"{graded}/rollouts/overview")["parts"] == ["accuracy", "format"]


def test_the_penalty_for_length_is_a_part(client: TestClient, settings: Settings, database: Database) -> None:
    job_id = add_graded_job(settings, database, overlong_buffer_tokens=4)
    assert get(client, f"{job_id}/rollouts/overview")["parts"] == ["accuracy", "format", "overlong"]
