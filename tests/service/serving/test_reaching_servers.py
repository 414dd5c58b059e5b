"""How the API reaches a model's server, and what users and operators see if it does not."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from service.ops.doctor.findings import Level
from service.ops.doctor.serving import model_servers
from service.platform.clock import db_now
from service.platform.db import Database
from service.platform.tables.serving import ModelServer
from service.serving import answer, repository
from service.settings import Settings
from tests.conftest import settings_for
from tests.service.job_samples import make_model
from tests.service.serving.answering import CHAT_WORKER, answering
from worker.attempt.worker import Worker

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
CHAT = "/v1/chat/completions"


@pytest.fixture
def answered(settings: Settings) -> Iterator[Worker]:
    for name in ("tiny", "other"):
        make_model(settings.home, name)
    with answering(settings.model_copy(update={"chat_models": 1})) as worker:
        yield worker


def body(text: str = "hello", model: str = "tiny", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


def change(database: Database, **values: Any) -> None:
    with database.transaction() as session:
        session.execute(update(ModelServer).values(**values))


def code_of(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


@pytest.mark.usefixtures("answered")
def test_a_server_that_the_api_cannot_reach_is_a_503_and_a_finding_of_the_doctor(
    client: TestClient, settings: Settings, database: Database
) -> None:
    assert list(model_servers(settings)) == []
    assert client.post(CHAT, json=body()).status_code == 200
    (reached,) = model_servers(settings)
    assert (reached.level, reached.found) == (Level.OK, "reached: tiny")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    change(database, address=f"http://127.0.0.1:{port}")
    (found,) = model_servers(settings)
    assert found.level is Level.WARNING
    assert found.found == f"tiny on {CHAT_WORKER} at http://127.0.0.1:{port}: ConnectError"
    assert "GRPO_SERVE_HOST" in found.advice
    refused = client.post(CHAT, json=body())
    assert code_of(refused) == (503, "server_unreachable")
    assert str(port) not in refused.text


@pytest.mark.usefixtures("answered")
def test_a_server_with_another_secret_answers_nothing_and_secrets_are_not_logged(
    client: TestClient, database: Database, settings: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    assert client.post(CHAT, json=body()).status_code == 200
    with database.reading() as session:
        (secret,) = session.scalars(select(ModelServer.secret))
    change(database, secret="wrong")
    assert code_of(client.post(CHAT, json=body())) == (503, "worker_lost")
    (found,) = model_servers(settings)
    assert (found.level, found.found.rpartition(": ")[2]) == (Level.WARNING, "HTTPStatusError")
    assert secret is not None
    assert secret not in "".join(capfd.readouterr())


@pytest.mark.usefixtures("answered")
def test_a_request_for_which_no_model_slot_gets_free_times_out(
    server_url: str, api_key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {"authorization": f"Bearer {api_key}"}
    with httpx.Client(base_url=server_url, headers=headers, timeout=30) as http:
        with http.stream("POST", CHAT, json=body("hang", stream=True)) as first:
            lines = first.iter_lines()  # without it the connection would be closed
            assert next(line for line in lines if "Base:" in line)
            monkeypatch.setattr(answer, "CLAIM_SECONDS", 0.3)
            refused = http.post(CHAT, json=body("hello", "other"))
            assert code_of(refused) == (503, "generation_timeout")
            assert refused.headers["x-should-retry"] == "false"
        monkeypatch.setattr(answer, "CLAIM_SECONDS", 60.0)
        assert http.post(CHAT, json=body("hello", "other")).status_code == 200


@contextmanager
def unloaded_by_the_first_request(database: Database) -> Iterator[str]:
    """Address of a server that its worker unloads, as an idle one, when a request arrives."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def unload() -> None:
            connection, _ = listener.accept()
            with connection, database.transaction() as session:
                assert connection.recv(1)
                held = session.execute(select(ModelServer.key, ModelServer.fence)).one()
                repository.end(session, *held)

        thread = threading.Thread(target=unload)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.usefixtures("answered")
def test_a_request_to_a_model_that_is_just_being_unloaded_is_answered_by_its_next_server(
    client: TestClient, database: Database
) -> None:
    assert client.post(CHAT, json=body()).status_code == 200
    with unloaded_by_the_first_request(database) as address:
        change(database, address=address)
        answered = client.post(CHAT, json=body("again"))
    assert answered.json()["choices"][0]["message"]["content"] == "Base: again"


@pytest.mark.usefixtures("answered")
def test_a_request_after_the_end_of_its_worker_is_answered_by_the_next_worker(
    client: TestClient, database: Database
) -> None:
    """A killed worker holds its lease for some time, although nothing listens at its address."""
    assert client.post(CHAT, json=body()).status_code == 200
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
    change(database, address=address, lease_owner="killed", lease_expires_at=db_now() + 3.0)
    answered = client.post(CHAT, json=body("again"))
    assert answered.json()["choices"][0]["message"]["content"] == "Base: again"


def test_a_worker_registers_the_name_at_which_the_api_reaches_it(
    client: TestClient, settings: Settings, database: Database
) -> None:
    make_model(settings.home)
    with answering(settings.model_copy(update={"serve_host": "localhost"})):
        assert client.post(CHAT, json=body()).status_code == 200
        with database.reading() as session:
            (address,) = session.scalars(select(ModelServer.address))
    assert address is not None
    assert address.startswith("http://localhost:")


def test_a_host_name_of_another_machine_is_named_in_the_worker_s_log(
    client: TestClient, settings: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    make_model(settings.home)
    with answering(settings.model_copy(update={"serve_host": "192.0.2.1"})):
        assert code_of(client.post(CHAT, json=body())) == (503, "model_unloadable")
    assert "cannot listen at GRPO_SERVE_HOST=192.0.2.1" in capfd.readouterr().err


def test_the_server_listens_on_loopback_unless_the_deployment_has_several_machines(
    settings: Settings,
) -> None:
    assert settings.serve_address == "127.0.0.1"
    production = {"mode": "production", "database_url": "postgresql://db/grpo", "broker_url": "redis://r"}
    assert settings_for(settings.home, **production).serve_address == socket.gethostname()
    assert settings_for(settings.home, **production, serve_host="10.0.0.7").serve_address == "10.0.0.7"
