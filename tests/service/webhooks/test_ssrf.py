"""URLs that lead inside are refused wherever the API takes one, before any look-up and any connection."""

import socket
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.conftest import on_sqlite
from tests.service.job_samples import reinforcement
from tests.service.web.error_samples import error_of
from tests.support.hostile_urls import REFUSED

GRADERS = "/v1/fine_tuning/alpha/graders"
JOBS = "/v1/fine_tuning/jobs"


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names that were looked up; all of them lead to this machine."""
    names: list[str] = []

    def to_here(host: str, port: int, **_options: Any) -> list[Any]:
        names.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", to_here)
    return names


def endpoint(url: str, port: int = 0) -> dict[str, Any]:
    return {"type": "endpoint", "url": url.replace("PORT", str(port))}


def refusals(client: TestClient, grader: dict[str, Any]) -> list[tuple[int, str]]:
    """Status and field for a grader that is checked, that is run, and that is part of a job's."""
    parts = {"type": "multi", "graders": {"a": grader}, "calculate_output": "a"}
    job = {"model": "tiny", "training_file": "file-1", "method": reinforcement(parts)}
    answers = [
        client.post(f"{GRADERS}/validate", json={"grader": grader}),
        client.post(f"{GRADERS}/run", json={"grader": grader, "model_sample": "x"}),
        client.post(JOBS, json=job),
    ]
    return [(answer.status_code, error_of(answer)["param"]) for answer in answers]


def places(field: str) -> list[tuple[int, str]]:
    found = (f"grader.{field}", f"grader.{field}", f"method.reinforcement.grader.graders.a.{field}")
    return [(400, place) for place in found]


@on_sqlite
def test_a_private_endpoint_is_refused_in_every_field(
    client: TestClient, listener: socket.socket, looked_up: list[str]
) -> None:
    assert len(REFUSED) >= 40
    for url in REFUSED:
        if "\0" in url:
            continue  # no JSON body may hold it: test_validation.py
        assert refusals(client, endpoint(url, listener.getsockname()[1])) == places("url"), url
    assert looked_up == []


@on_sqlite
@pytest.mark.parametrize("field", ["url", "base_url", "api_base"])
def test_a_judge_has_no_url_of_the_users(client: TestClient, listener: socket.socket, field: str) -> None:
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    judge = {"type": "score_model", "model": "m", "input": [{"role": "user", "content": "x"}]}
    assert refusals(client, {**judge, field: url}) == places(field)


@on_sqlite
def test_a_judges_endpoint_is_a_name_and_not_a_url(client: TestClient, listener: socket.socket) -> None:
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    judge = {
        "type": "score_model",
        "model": "m",
        "input": [{"role": "user", "content": "x"}],
        "endpoint": url,
    }
    for path, body in (("validate", {"grader": judge}), ("run", {"grader": judge, "model_sample": "x"})):
        error = error_of(client.post(f"{GRADERS}/{path}", json=body))
        assert error["param"] == "grader.endpoint"


@on_sqlite
def test_a_private_tool_url_is_refused(
    client: TestClient, listener: socket.socket, looked_up: list[str]
) -> None:
    tool = {"type": "http", "name": "ask", "description": "d", "parameters": {"type": "object"}}
    port = str(listener.getsockname()[1])
    for url in ("http://127.0.0.1:PORT/", "https://[::1]:PORT/", "https://2130706433:8443/"):
        method = reinforcement()
        method["reinforcement"]["tools"] = [{**tool, "url": url.replace("PORT", port)}]
        body = {"model": "tiny", "training_file": "file-1", "method": method}
        error = error_of(client.post(JOBS, json=body))
        assert error["param"] == "method.reinforcement.tools[0].url"
    assert looked_up == []
    assert looked_up == []


@on_sqlite
def test_a_name_with_a_private_address_is_resolved_once_and_never_called(
    client: TestClient, listener: socket.socket, looked_up: list[str]
) -> None:
    grader = endpoint("https://rebind.example:8443/")
    answer = client.post(f"{GRADERS}/run", json={"grader": grader, "model_sample": "x"})
    assert answer.status_code == 200
    (error,) = answer.json()["grader_errors"].values()
    assert "has an address that is not public" in error["message"]
    assert (answer.json()["scorable"], looked_up) == (False, ["rebind.example"])
