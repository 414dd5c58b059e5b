"""Any question to the ledger, page by page, finds what reading all of it does, in the promised order."""

import random
from itertools import chain
from typing import Any

from fastapi.testclient import TestClient

from service.platform.db import Database
from service.settings import Settings
from tests.service.rollouts.rollout_samples import add_graded_job, add_group, completion, scored

JOBS = "/v1/fine_tuning/jobs"
FILTERS = (None, "truncated", "grader_error", "no_signal", "best", "worst")
NUM_QUESTIONS = 24


def fill(database: Database, job_id: str, chance: random.Random) -> None:
    for step in range(1, 5):
        for position in range(3):
            size = chance.choice((1, 3, 4))
            group = [
                scored(
                    f"{step} {position} {index}",
                    chance.choice((None, 0.0, 0.0, 1.0)),
                    chance.choice((0.0, 1.0)),
                    finish=chance.choice(("stop", "stop", "length")),
                )
                for index in range(size)
            ]
            add_group(database, job_id, step, position, group, split=chance.choice(("train", "validation")))


def question(chance: random.Random) -> dict[str, Any]:
    query = {
        "filter": chance.choice(FILTERS),
        "split": chance.choice((None, None, "train")),
        "from_step": chance.choice((None, 2)),
        "to_step": chance.choice((None, 3)),
        "fired": chance.choice((None, None, "format")),
        "not_fired": chance.choice((None, None, "accuracy")),
    }
    return {name: value for name, value in query.items() if value is not None}


def pages(client: TestClient, url: str, limit: int, query: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        after = {"after": found[-1]["id"]} if found else {}
        page = client.get(url, params={**query, **after, "limit": limit}).raise_for_status().json()
        found += page["data"]
        if not page["has_more"]:
            return found


def expected(everything: list[dict[str, Any]], query: dict[str, Any]) -> list[str]:
    """Ids of the completions that are meant, all completions given."""
    selected = [one for one in everything if is_selected(one, query)]
    selected.sort(key=lambda one: (-one["step"], one["split"], one["position"], one["index"]))
    if query.get("filter") in ("best", "worst"):
        selected = [one for one in selected if one["reward"] is not None]
        selected.sort(key=lambda one: one["reward"] * (-1 if query["filter"] == "best" else 1))
    return [one["id"] for one in selected]


def is_selected(one: dict[str, Any], query: dict[str, Any]) -> bool:
    fired, not_fired = (one["parts"].get(query.get(name)) for name in ("fired", "not_fired"))
    has = {
        "truncated": one["finish_reason"] == "length",
        "grader_error": one["reward"] is None,
        "no_signal": not one["has_signal"],
    }
    return all(
        (
            query.get("from_step", 0) <= one["step"] <= query.get("to_step", 9),
            query.get("split") in (None, one["split"]),
            has.get(query.get("filter", ""), True),
            "fired" not in query or (fired is not None and fired > 0),
            "not_fired" not in query or (not_fired is not None and not_fired <= 0),
        )
    )


def test_a_failed_session_is_not_among_the_truncated_completions(
    client: TestClient, settings: Settings, database: Database
) -> None:
    job_id = add_graded_job(settings, database)
    episode = {"environment": "words", "seed": 1, "turns": [], "reward": None}
    failed = completion(None, finish="length", episode={**episode, "failure": "connection closed"})
    cut = completion(0.5, finish="length", episode={**episode, "failure": None})
    add_group(database, job_id, 1, 0, [failed, cut])
    (found,) = pages(client, f"{JOBS}/{job_id}/rollouts/completions", 10, {"filter": "truncated"})
    assert found["index"] == 1


def test_pages_of_completions_equal_a_filter_over_all_of_them(
    client: TestClient, settings: Settings, database: Database
) -> None:
    chance = random.Random(11)
    job_id = add_graded_job(settings, database)
    fill(database, job_id, chance)
    groups = pages(client, f"{JOBS}/{job_id}/rollouts", 100, {})
    everything = list(
        chain.from_iterable(
            (
                {
                    **group,
                    **one,
                    "index": index,
                    "id": group["id"].replace("rollout", "completion") + f"-{index}",
                }
                for index, one in enumerate(group["completions"])
            )
            for group in groups
        )
    )
    for query in (question(chance) for _ in range(NUM_QUESTIONS)):
        found = pages(client, f"{JOBS}/{job_id}/rollouts/completions", chance.choice((3, 7)), query)
        assert [one["id"] for one in found] == expected(everything, query), query
