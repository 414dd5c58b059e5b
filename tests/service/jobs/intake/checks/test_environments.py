"""A job's environments at submit: rows and environments name each other, each server is tried."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.settings import Settings
from tests.service.job_samples import jsonl, make_model, reinforcement, request, row, upload
from tests.support.chat_server import ScriptedServer
from tests.support.openenv.server import OpenEnvServer
from tests.support.servers import free_port

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture(scope="module")
def server() -> Iterator[OpenEnvServer]:
    with OpenEnvServer("word") as server:
        yield server


@pytest.fixture(autouse=True)
def _deployment(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    make_model(settings.home)
    monkeypatch.setenv("GRPO_ALLOWED_HOSTS", "127.0.0.1")


def post(client: TestClient, rows: list[dict[str, Any]], **environments: dict[str, Any]) -> Any:
    method = reinforcement()
    del method["reinforcement"]["grader"]
    method["reinforcement"]["environments"] = {
        name: {"type": "openenv", "timeout_seconds": 2.0, **given} for name, given in environments.items()
    }
    return client.post("/v1/fine_tuning/jobs", json=request(upload(client, jsonl(*rows)), method=method))


def test_a_job_with_a_working_environment_is_queued_with_its_reward_as_grader(
    client: TestClient, server: OpenEnvServer
) -> None:
    answer = post(client, [row(environment="game")] * 2, game={"url": server.url, "max_turns": 3})
    assert answer.status_code == 200, answer.text
    job = answer.json()
    assert job["method"]["reinforcement"]["grader"]["rule"] == "environment"
    expected = job["estimate"]
    assert expected["turns"] == {"low": expected["completions"], "high": 3 * expected["completions"]}
    tokens = job["method"]["reinforcement"]["hyperparameters"]["max_completion_tokens"]
    assert expected["sampled_tokens"]["high"] == tokens * expected["completions"]
    assert any("1 to 3 turns" in note for note in expected["notes"])
    assert "duplicate_rows" not in str(job["warnings"]), "equal rows have different seeds"


def test_rows_and_environments_must_name_each_other(client: TestClient, server: OpenEnvServer) -> None:
    rows = [
        row(environment="game"),
        row("Go", environment="chess"),
        row("Now", environment="game", reset=[1]),
    ]
    answer = post(client, rows, game={"url": server.url}, idle={"url": server.url})
    assert answer.status_code == 400
    found = {each["param"] for each in answer.json()["error"]["problems"]}
    assert found == {
        "training_file[2].environment",
        "training_file[3].reset",
        "method.reinforcement.environments.idle",
    }


def test_a_server_that_cannot_be_used_is_refused_at_its_url(
    client: TestClient, server: OpenEnvServer
) -> None:
    rows = [row(environment="game"), row("Go", environment="game")]
    away = post(client, rows, game={"url": f"http://127.0.0.1:{free_port()}"}).json()["error"]
    assert (away["param"], away["code"]) == (
        "method.reinforcement.environments.game.url",
        "environment_unreachable",
    )
    over = post(client, rows, game={"url": server.url, "reset": {"behave": "over"}}).json()["error"]
    assert "reset ends the episode" in over["message"]


def test_an_address_that_the_operator_does_not_allow_is_refused(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPO_ALLOWED_HOSTS", "")
    error = post(client, [row(environment="game")] * 2, game={"url": "http://127.0.0.1:9"}).json()["error"]
    assert error["param"] == "method.reinforcement.environments.game.url"


def test_an_agent_must_answer_and_is_given_no_rollout_at_submit(
    client: TestClient, server: OpenEnvServer
) -> None:
    rows = [row(environment="agent"), row("Go", environment="agent")]
    with ScriptedServer(lambda request: "{}") as agent:
        taken = post(client, rows, agent={"type": "agent", "url": agent.url})
        mixed = post(
            client,
            [*rows, row("Now", environment="game")],
            agent={"type": "agent", "url": agent.url},
            game={"url": server.url},
        )
        assert agent.requests == [], "only a GET, which this server does not record"
    away = post(client, rows, agent={"type": "agent", "url": agent.url})
    assert taken.status_code == 200, taken.text
    assert "in a second job that starts from the result" in mixed.json()["error"]["message"]
    assert away.json()["error"]["code"] == "environment_unreachable"
