"""Another grader over stored rollouts: what would have changed, and what is refused."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from grpo_engine.objective.advantages import GroupRewards, advantages
from service.platform.db import Database
from service.rollouts import rescore
from service.rollouts.rescoring import rank_agreement
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.job_samples import make_model
from tests.service.rollouts.rollout_samples import MULTI, add_graded_job, add_group, completion, scored

pytestmark = on_sqlite  # one database: its queries are those of exports, which are tested on both

JOBS = "/v1/fine_tuning/jobs"
ACCURACY = {"type": "numeric", "name": "accuracy", "reference": "{{item.answer}}"}


def python(body: str) -> dict[str, Any]:
    return {"type": "python", "name": "own", "source": f"def grade(sample, item):\n    {body}\n"}


def scored_again(client: TestClient, job_id: str, grader: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer = client.post(f"{JOBS}/{job_id}/rollouts/rescore", json={"grader": grader, **more})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def refused(client: TestClient, job_id: str, grader: dict[str, Any], **more: Any) -> tuple[str, str]:
    answer = client.post(f"{JOBS}/{job_id}/rollouts/rescore", json={"grader": grader, **more})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return error["param"], error["code"]


@pytest.fixture
def job_id(settings: Settings, database: Database) -> str:
    """Two groups in step 1, one in step 2, as MULTI scored them; the rows' answers are 0, 2, 4, 6."""
    job_id = add_graded_job(settings, database)
    first = [
        scored("<answer>0</answer>", 1.0, 1.0),
        scored("0", 1.0, 0.0),
        scored("<answer>9</answer>", 0.0, 1.0),
    ]
    add_group(database, job_id, 1, 0, first, row=0)
    add_group(database, job_id, 1, 1, [scored("3", 0.0, 0.0), scored("7", 0.0, 0.0)], row=1)
    add_group(database, job_id, 2, 0, [scored("4", 1.0, 0.0), scored("<answer>5</answer>", 0.0, 1.0)], row=2)
    return job_id


def test_the_same_grader_changes_nothing(client: TestClient, job_id: str) -> None:
    found = scored_again(client, job_id, MULTI)
    summary = found["summary"]
    assert summary["before"] == summary["after"]
    assert (summary["num_groups"], summary["num_completions"], summary["num_sign_changes"]) == (3, 7, 0)
    assert (summary["from_step"], summary["to_step"], summary["rank_agreement"]) == (1, 2, 1.0)
    for group in found["data"]:
        for one in group["completions"]:
            assert one["reward_after"] == pytest.approx(one["reward_before"])
            assert one["advantage_after"] == pytest.approx(one["advantage_before"])


def test_another_grader_moves_rewards_advantages_and_ranks(client: TestClient, job_id: str) -> None:
    shape = {"type": "format", "name": "shape", "tags": ["answer"]}
    found = scored_again(client, job_id, shape)
    newest, first, mute = found["data"]
    assert [(each["step"], each["position"]) for each in found["data"]] == [(2, 0), (1, 0), (1, 1)]
    assert [one["reward_after"] for one in newest["completions"]] == [0.0, 1.0]
    assert (newest["rank_agreement"], newest["num_sign_changes"]) == (-1.0, 2)
    assert (first["mean_before"], first["mean_after"]) == (
        pytest.approx(0.6667, abs=1e-4),
        pytest.approx(2 / 3),
    )
    assert first["completions"][1]["parts"] == {"shape": 0.0}
    assert (mute["has_signal_before"], mute["has_signal_after"], mute["rank_agreement"]) == (
        False,
        False,
        None,
    )
    assert found["summary"]["num_sign_changes"] == 2 + first["num_sign_changes"]


def test_advantages_are_those_of_the_engine_over_whole_steps(client: TestClient, job_id: str) -> None:
    found = scored_again(client, job_id, ACCURACY, advantage="batch_std", to_step=1)
    rewards = [GroupRewards((1.0, 1.0, 0.0)), GroupRewards((0.0, 0.0))]
    expected = advantages(rewards, "batch_std")
    assert found["advantage"] == "batch_std"
    shown = [[one["advantage_after"] for one in group["completions"]] for group in found["data"]]
    assert shown == [pytest.approx(list(each.values)) for each in expected]


def test_unscorable_completions_are_counted_by_reason_and_are_not_0(client: TestClient, job_id: str) -> None:
    missing = {**ACCURACY, "reference": "{{item.solution}}"}
    found = scored_again(client, job_id, missing)
    after = found["summary"]["after"]
    assert after == {"mean_reward": None, "share_with_signal": 0.0, "num_unscored": 7}
    (error,) = found["summary"]["errors"]
    assert (error["part"], error["code"], error["count"]) == ("accuracy", "invalid_variable_error", 7)
    assert {one["reward_after"] for group in found["data"] for one in group["completions"]} == {None}


def test_untrusted_code_runs_in_the_sandbox_with_the_rows_fields(client: TestClient, job_id: str) -> None:
    grader = python("return float(item['answer']) + len(sample['output_text'])")
    found = scored_again(client, job_id, grader, from_step=2)
    assert [one["reward_after"] for one in found["data"][0]["completions"]] == [5.0, 22.0]
    grader = python("return float(open('/etc/passwd').read() and 1 // 0)")
    summary = scored_again(client, job_id, grader, from_step=2)["summary"]
    assert (summary["after"]["num_unscored"], summary["after"]["mean_reward"]) == (2, None)
    assert summary["errors"][0]["code"] == "python_grader_runtime_error"


def test_the_limit_takes_whole_steps_the_newest_first(client: TestClient, job_id: str) -> None:
    assert scored_again(client, job_id, MULTI, limit=6)["summary"]["from_step"] == 2
    assert scored_again(client, job_id, MULTI, limit=7)["summary"]["from_step"] == 1
    assert refused(client, job_id, MULTI, limit=1) == ("limit", "invalid_value")


def test_groups_that_called_tools_are_excluded_and_counted(
    client: TestClient, database: Database, job_id: str
) -> None:
    add_group(database, job_id, 2, 1, [scored("4", 1.0, 0.0, turns=2), scored("5", 0.0, 0.0)], row=2)
    summary = scored_again(client, job_id, MULTI, from_step=2)["summary"]
    assert (summary["num_groups"], summary["num_groups_skipped"]) == (1, 1)


def test_steps_in_which_all_groups_called_tools_are_refused_for_that_reason(
    client: TestClient, settings: Settings, database: Database
) -> None:
    job_id = add_graded_job(settings, database)
    add_group(database, job_id, 1, 0, [scored("4", 1.0, 0.0, turns=2), scored("5", 0.0, 0.0)])
    answer = client.post(f"{JOBS}/{job_id}/rollouts/rescore", json={"grader": ACCURACY})
    reason = "can be scored again: the answers of tools and environments are not stored in full."
    assert answer.json()["error"]["message"].endswith(reason)


def test_the_jobs_penalty_for_length_stays(
    client: TestClient, settings: Settings, database: Database
) -> None:
    job_id = add_graded_job(settings, database, overlong_buffer_tokens=4)
    long = completion(0.5, text="0", parts={"accuracy": 1.0, "format": 0.0, "overlong": -0.3})
    add_group(database, job_id, 1, 0, [long, scored("9", 0.0, 0.0)])
    (group,) = scored_again(client, job_id, ACCURACY)["data"]
    assert group["completions"][0]["reward_after"] == pytest.approx(0.7)
    assert group["completions"][0]["parts"] == {"accuracy": 1.0, "overlong": -0.3}


def test_graders_that_need_a_worker_or_cost_money_are_refused(
    client: TestClient, job_id: str, settings: Settings
) -> None:
    model = {"type": "reward_model", "name": "liked", "model": "tiny"}
    make_model(settings.home)
    assert refused(client, job_id, model) == ("grader", "grader_needs_worker")
    judge = {"type": "endpoint", "name": "theirs", "url": "https://graders.example.com/score"}
    assert refused(client, job_id, judge) == ("limit", "invalid_value")


def test_rewards_of_single_steps_are_not_stored_so_that_another_advantage_must_be_named(
    client: TestClient, settings: Settings, database: Database
) -> None:
    process = {"type": "process", "name": "steps", "splitter": "lines", "grader": ACCURACY}
    job_id = add_graded_job(settings, database, grader=process, advantage="process")
    add_group(database, job_id, 1, 0, [completion(0.0), completion(1.0)])
    assert refused(client, job_id, ACCURACY) == ("advantage", "invalid_value")
    assert scored_again(client, job_id, ACCURACY, advantage="group_std")["advantage"] == "group_std"


def test_steps_without_rollouts_and_missing_files_are_named(client: TestClient, job_id: str) -> None:
    assert refused(client, job_id, MULTI, from_step=9) == ("from_step", "no_rollouts")
    assert refused(client, job_id, MULTI, split="validation") == ("split", "invalid_value")
    file_id = client.get(f"{JOBS}/{job_id}").json()["training_file"]
    client.delete(f"/v1/files/{file_id}")
    assert refused(client, job_id, MULTI) == ("training_file", "file_not_found")


def test_a_grader_that_takes_too_long_is_an_error_and_no_half_answer(
    client: TestClient, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescore, "DEADLINE_SECONDS", 0.0)
    assert refused(client, job_id, MULTI) == ("limit", "rescore_too_slow")


def test_rank_agreement_is_kendalls_tau_b() -> None:
    assert rank_agreement([(0, 0), (1, 1), (2, 2)]) == 1.0
    assert rank_agreement([(0, 2), (1, 1), (2, 0)]) == -1.0
    # three pairs; one is tied on the right: (2 - 0) / sqrt(3 * 2)
    assert rank_agreement([(0, 0), (1, 1), (2, 1)]) == pytest.approx(2 / 6**0.5)
    assert rank_agreement([(0, 1), (1, 1)]) is None
    assert rank_agreement([]) is None
