"""A job's environments at submit: rows and environments name each other, each server is tried."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.settings import Settings
from tests.ports import free_port
from tests.service.job_samples import jsonl, make_model, reinforcement, request, row, upload
from tests.support.chat_server import ScriptedServer
from tests.support.openenv.server import OpenEnvServer

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture(scope="module")
def server() -> Iterator[OpenEnvServer]:
    with OpenEnvServer("word") as server:
        yield server


@pytest.fixture(autouse=True)
def _deployment(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    make_model(settings.home)
    monkeypatch.setenv("GRPO_ALLOWED_HOSTS", "127.0.0.1")


def post(client: TestClient, rows: list[dict[str, Any]], tools: Any = (), /, **environments: Any) -> Any:
    method = reinforcement()
    del method["reinforcement"]["grader"]
    method["reinforcement"]["tools"] = tools
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
        row("Go"),
        row("Now", environment="game", reset=[1]),
    ]
    answer = post(client, rows, game={"url": server.url}, idle={"url": server.url})
    assert answer.status_code == 400
    found = {each["param"]: each["message"] for each in answer.json()["error"]["problems"]}
    assert "train such rows in a job without environments" in found["training_file[2].environment"]
    assert set(found) == {
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


def test_a_server_is_tried_with_the_arguments_of_its_first_row(
    client: TestClient, server: OpenEnvServer
) -> None:
    rows = [row(environment="game", reset={"behave": behave}) for behave in ("", "over")]
    game = {"url": server.url, "reset": {"behave": "over"}}
    taken, refused = post(client, rows, game=game), post(client, rows[::-1], game=game)
    assert taken.status_code == 200, taken.text
    assert "reset ends the episode" in refused.json()["error"]["message"]


def test_an_address_that_the_operator_does_not_allow_is_refused(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPO_ALLOWED_HOSTS", "")
    error = post(client, [row(environment="game")] * 2, game={"url": "http://127.0.0.1:9"}).json()["error"]
    assert error["param"] == "method.reinforcement.environments.game.url"


def test_an_agent_must_answer_and_is_given_no_rollout_at_submit(
    client: TestClient, server: OpenEnvServer
) -> None:
    rows, tools = [row(environment="agent"), row("Go", environment="game")], [{"type": "python"}]
    with ScriptedServer(lambda request: "{}") as listening:
        agent, game = {"type": "agent", "url": listening.url}, {"url": server.url}
        taken = post(client, rows, agent=agent, game=game)
        with_tools = post(client, rows[1:] * 2, tools, game=game)
        both = post(client, rows, tools, agent=agent, game=game)
        assert listening.requests == [], "only a GET, which this server does not record"
    away = post(client, rows, agent=agent, game=game)
    assert (taken.status_code, with_tools.status_code) == (200, 200), taken.text + with_tools.text
    assert (
        "an agent cannot use the job's tools: let the agent call its own" in both.json()["error"]["message"]
    )
    assert away.json()["error"]["code"] == "environment_unreachable"
