"""`grpo list`, `edit`, `delete` and `sweep` against a `grpo up` with a fake engine."""

from pathlib import Path
from typing import Any

import pytest

from service.cli.manage.listing import held_out_change
from service.cli.manage.sweep import label_of, runs_of
from service.cli.terminal.errors import CommandError
from tests.service.embedded import Up
from tests.support.servers import wait_until


def settings(job: dict[str, Any]) -> tuple[float, int]:
    found = job["method"]["reinforcement"]["hyperparameters"]
    return found["learning_rate"], found["group_size"]


def test_a_sweep_creates_each_combination_once(up: Up, job_file: Path) -> None:
    command = (
        "sweep",
        job_file,
        "--set",
        "learning_rate=1e-5,3e-5",
        "--set",
        "group_size=2,4",
        "--name",
        "lr",
    )
    made = up.json(*command)["jobs"]
    assert [settings(job) for job in made] == [(1e-5, 2), (1e-5, 4), (3e-5, 2), (3e-5, 4)]
    assert [job["name"] for job in made[:2]] == [
        "lr: learning_rate=1e-5, group_size=2",
        "lr: learning_rate=1e-5, group_size=4",
    ]
    assert len({job["training_file"] for job in made}) == 1
    for job in made:
        wait_until(lambda job=job: up.job(job["id"])["status"] == "succeeded", 120, "the job has succeeded")
    up.grpo("delete", made[2]["id"], "--yes")
    again = up.json(*command)["jobs"]
    assert [job["id"] for job in again[:2]] == [job["id"] for job in made[:2]]
    assert again[3]["id"] == made[3]["id"]
    assert settings(again[2]) == (3e-5, 2)
    assert again[2]["id"] != made[2]["id"]
    listed = up.json("list", "--query", "lr: ", "--sort", "name")
    assert [job["id"] for job in listed] == [job["id"] for job in again]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("learning_rat=1,2",), "no such field"),
        (("foo=1,2",), "Hint: docs/reference/hyperparameters.md lists the hyperparameters"),
        (("learning_rate",), "write FIELD=A,B"),
        (("seed=1", "seed=2"), "given twice"),
        (("lora.rank=4,x",), "lora.rank: Input should be a valid integer, got 'x'"),
        (("model=tiny,absent",), "wrong: model=absent: "),
        ((f"seed={','.join(map(str, range(65)))}",), "65 jobs, more than 64"),
    ],
)
def test_a_wrong_sweep_is_refused_before_the_first_job(
    up: Up, job_file: Path, change: tuple[str, ...], reason: str
) -> None:
    options = [part for one in change for part in ("--set", one)]
    done = up.grpo("sweep", job_file, *options, "--name", "wrong")
    assert (done.returncode, reason in done.stderr) == (1, True), done.stderr
    assert up.json("list", "--query", "wrong", "--archived", "all") == []


def test_a_comma_inside_of_json_separates_nothing() -> None:
    assert runs_of(['lora={"rank":8,"alpha":16},"full"', "seed=1"]) == [
        {"lora": '{"rank":8,"alpha":16}', "seed": "1"},
        {"lora": '"full"', "seed": "1"},
    ]
    with pytest.raises(CommandError, match="write FIELD=A,B"):
        runs_of(["=1"])


def test_long_combinations_that_start_alike_have_labels_of_their_own() -> None:
    long = [label_of({"system": "x" * 600 + end}) for end in "ab"]
    assert long[0] != long[1]
    assert max(map(len, long)) <= 512
    assert label_of({"seed": "1"}) == '{"seed": "1"}'


def test_jobs_are_renamed_tagged_archived_listed_and_deleted(up: Up, job_file: Path) -> None:
    job_id = up.json("submit", job_file)["id"]
    up.grpo("edit", job_id, "--name", "Baseline", "--tag", "maths", "--tag", "old", "--notes", "n")
    edited = up.json("edit", job_id, "--untag", "old", "--notes", "", "--archive")
    found = {name: edited[name] for name in ("name", "notes", "tags", "archived")}
    assert found == {"name": "Baseline", "notes": None, "tags": ["maths"], "archived": True}
    assert up.json("list", "--tag", "maths") == []
    shown = up.grpo("list", "--tag", "maths", "--archived", "only").stdout
    assert job_id in shown
    assert "Baseline" in shown
    wait_until(lambda: up.job(job_id)["status"] == "succeeded", 120, "the job has succeeded")
    deleted = up.json("delete", job_id, "--yes")
    assert deleted == {"object": "fine_tuning.job.deleted", "id": job_id, "deleted": True}
    assert up.json("list", "--tag", "maths", "--archived", "all") == []


def test_an_edit_without_a_change_says_what_can_change(up: Up) -> None:
    done = up.grpo("edit", "ftjob-1")
    assert (done.returncode, "nothing to change" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        ({"difference": 0.083, "low": 0.02, "high": 0.14}, "+0.083"),
        ({"difference": -0.041, "low": -0.08, "high": -0.01}, "−0.041"),
        ({"difference": 0.01, "low": -0.02, "high": 0.04}, "+0.010, not significant"),
        ({"difference": 1.0, "low": None, "high": None}, "+1.000, not significant"),
        (None, ""),
    ],
)
def test_the_held_out_change_is_in_the_reward_s_unit(
    verdict: dict[str, float | None] | None, text: str
) -> None:
    assert held_out_change({"eval": {"verdict": verdict}}) == text
