"""Chat when a process dies, a client disconnects, or a job needs the GPUs."""

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select, update

from service.app import create_app
from service.platform.db import Database
from service.platform.tables.core import Job
from service.platform.tables.serving import ChatWorker, ModelServer
from service.serving import repository
from service.settings import Settings
from service.web.auth import create_key
from tests.conftest import on_sqlite
from tests.service.serving.answering import CHAT_WORKER, answering, faked, num_workers
from tests.service.serving.processes import serving
from tests.support.servers import wait_until
from tests.support.waiting import is_alive, talking_engines
from tests.worker.conftest import Process, Processes
from tests.worker.jobs import insert_job
from worker.serving.chat import only_one

CHAT = "/v1/chat/completions"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    for name in ("other", "broken", "changed"):
        (settings.home / "models" / name).mkdir()
        (settings.home / "models" / name / "config.json").write_text("{}")
    return faked(settings).model_copy(update={"chat_models": 2})


@contextmanager
def client_of(settings: Settings, database: Database) -> Iterator[httpx.Client]:
    with database.transaction() as session:
        key = create_key(session, "tenant-a")
    headers = {"authorization": f"Bearer {key}"}
    with (
        serving(create_app(settings)) as url,
        httpx.Client(base_url=url, headers=headers, timeout=30) as http,
    ):
        yield http


@pytest.fixture
def http(settings: Settings, database: Database) -> Iterator[httpx.Client]:
    with client_of(settings, database) as client:
        yield client


@pytest.fixture
def start(processes: Processes, database: Database) -> Callable[[], Process]:
    """A running `python -m worker.serving.chat`, ready to answer."""

    def start() -> Process:
        process = processes.start("-m", "worker.serving.chat")
        wait_until(lambda: num_workers(database), 120, "the worker answers")
        return process

    return start


@pytest.fixture
def answer(settings: Settings) -> Iterator[Callable[..., None]]:
    """Answer in a thread of this process."""
    with ExitStack() as stack:
        yield lambda **changed: stack.enter_context(answering(settings.model_copy(update=changed)))  # type: ignore[func-returns-value]


def body(text: str, model: str = "tiny", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


@contextmanager
def started_stream(http: httpx.Client, text: str = "hang on") -> Iterator[Iterator[dict[str, Any]]]:
    """Events of a stream that has already sent text."""
    with http.stream("POST", CHAT, json=body(text, stream=True)) as answer:
        assert answer.status_code == 200, answer.read()
        lines = (line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: "))
        events = (json.loads(line) for line in lines if line != "[DONE]")
        while not next(events)["choices"][0]["delta"].get("content"):
            pass
        yield events


def last_code(events: Iterator[dict[str, Any]]) -> str | None:
    """Code of the error that ends a stream."""
    *_, last = events
    return last.get("error", {}).get("code")


def samplers() -> list[int]:
    """Process ids of the model processes below this process."""
    return talking_engines(os.getpid())


def test_a_killed_worker_ends_its_streams_and_its_sampler(
    http: httpx.Client, start: Callable[[], Process], database: Database
) -> None:
    worker = start()
    with started_stream(http) as events:
        (sampler,) = talking_engines(worker.pid)
        worker.kill()
        with database.transaction() as session:  # expires its lease
            session.execute(update(ModelServer).values(lease_expires_at=0.0))
        assert last_code(events) == "worker_lost"
    wait_until(lambda: not is_alive(sampler), 120, "the sampler dies with its worker")


@on_sqlite
def test_a_stopping_worker_ends_its_streams_with_an_error(
    http: httpx.Client, start: Callable[[], Process]
) -> None:
    worker = start()
    with started_stream(http) as events:
        worker.terminate()
        assert last_code(events) == "worker_stopping"
    assert worker.wait(timeout=60) == 0
    refused = http.post(CHAT, json=body("anybody?"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_chat_worker")


@on_sqlite
def test_a_killed_sampler_fails_its_requests_and_is_replaced(
    http: httpx.Client, answer: Callable[..., None]
) -> None:
    answer()
    refused = http.post(CHAT, json=body("die now"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "sampler_died")
    with started_stream(http) as events:
        (sampler,) = samplers()
        os.kill(sampler, signal.SIGKILL)
        assert last_code(events) == "sampler_died"
    assert http.post(CHAT, json=body("hello")).json()["choices"][0]["message"]["content"] == "Base: hello"


@on_sqlite
def test_a_request_whose_client_has_left_frees_its_model_slot(
    http: httpx.Client, answer: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    answer(chat_models=1)
    with started_stream(http):
        pass
    with pytest.raises(httpx.ReadTimeout):
        http.post(CHAT, json=body("hang on"), timeout=1)
    assert http.post(CHAT, json=body("hello", "other")).status_code == 200
    assert "client left" in capfd.readouterr().err


@on_sqlite
def test_an_idle_model_is_evicted_or_unloaded(http: httpx.Client, answer: Callable[..., None]) -> None:
    answer(chat_models=1, chat_idle_seconds=0.3)
    assert http.post(CHAT, json=body("hello")).status_code == 200
    (first,) = samplers()
    assert http.post(CHAT, json=body("hello", "other")).status_code == 200
    wait_until(lambda: not is_alive(first), 120, "the first model's sampler ends")
    wait_until(lambda: not samplers(), 120, "the second one too, when it is idle")


@on_sqlite
@pytest.mark.parametrize(
    ("model", "status", "code"),
    [("broken", 503, "model_unloadable"), ("changed", 404, "base_model_changed")],
)
def test_a_loading_error_reveals_no_internal_path(
    http: httpx.Client,
    answer: Callable[..., None],
    capfd: pytest.CaptureFixture[str],
    model: str,
    status: int,
    code: str,
) -> None:
    answer()
    refused = http.post(CHAT, json=body("hello", model))
    assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)
    assert "/an/internal/path" not in refused.text
    assert "/an/internal/path" in capfd.readouterr().err


@on_sqlite
def test_jobs_take_precedence_over_chat_on_gpus(
    settings: Settings, database: Database, answer: Callable[..., None]
) -> None:
    answer(gpus=1)
    with client_of(settings, database) as http:
        with started_stream(http) as events:
            here = {"state": "running", "lease_owner": f"{socket.gethostname()}:1"}
            job_id = insert_job(database, "file-1", fence=1, lease_expires_at=9e9, **here)
            assert last_code(events) == "workers_training"
        assert samplers() == []
        refused = http.post(CHAT, json=body("hello"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "workers_training")
        assert refused.headers["retry-after"] == "60"
        with database.transaction() as session:
            session.execute(update(Job).where(Job.id == job_id).values(state="succeeded"))
        assert http.post(CHAT, json=body("hello")).status_code == 200


@on_sqlite
def test_prompts_and_answers_are_not_logged(
    http: httpx.Client, answer: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    answer()
    for text in ("confidential", "refuse confidential", "die confidential"):
        http.post(CHAT, json=body(text))
    output = "".join(capfd.readouterr())
    assert "request answered" in output
    assert "confidential" not in output


def test_a_stale_claim_writes_nothing(database: Database) -> None:
    with database.transaction() as session:
        repository.want(session, "key", "a", "tiny", is_new=True)
        stale = repository.claim(session, "worker", 0)
        assert stale is not None
    with database.transaction() as session:
        claimed = repository.claim(session, "other", 60)
        assert claimed == stale._replace(fence=stale.fence + 1)
        assert repository.claim(session, "third", 60) is None
        assert not repository.register(session, *stale[:2], "http://stale", "s")
        assert repository.register(session, *claimed[:2], "http://here", "s")
        repository.end(session, *stale[:2], {"code": "x", "message": "y"})
        assert repository.served(session) == [("tiny", "other", "http://here", "s")]
        assert repository.renew(session, "worker", 60) == set()
        assert repository.renew(session, "other", 60) == {("key", claimed.fence)}


def test_an_unloaded_model_is_loaded_again_only_for_a_new_request(database: Database) -> None:
    with database.transaction() as session:
        for refusal in (None, {"code": "model_unloadable", "message": "no"}):
            repository.want(session, "key", "a", "tiny", is_new=True)
            claimed = repository.claim(session, "worker", 60)
            assert claimed is not None
            repository.end(session, *claimed[:2], refusal)
            assert not repository.has_wanted(session)
            assert repository.find(session, "key") == (claimed.fence, False, None, None, refusal, None)


@on_sqlite
def test_a_model_that_was_claimed_and_never_loaded_is_released(
    settings: Settings, database: Database
) -> None:
    with database.transaction() as session:
        repository.want(session, "key", "a", "tiny", is_new=True)
        claimed = repository.claim(session, CHAT_WORKER, 60)
        assert claimed is not None
    with answering(settings):
        wait_until(lambda: repository_state(database, "key") == (1, False), 120, "it is released")


def repository_state(database: Database, key: str) -> tuple[int, bool] | None:
    with database.reading() as session:
        found = repository.find(session, key)
        return found and (found.fence, found.is_held)


def test_old_rows_are_deleted(database: Database) -> None:
    with database.transaction() as session:
        session.add(ModelServer(key="old", tenant="a", model="tiny", wanted_at=1.0))
        session.add(ModelServer(key="held", tenant="a", model="tiny", wanted_at=1.0, lease_owner="new"))
        session.add(ChatWorker(name="gone", is_training=False, seen_at=1.0))
        session.flush()
        repository.renew(session, "new", 60)
        repository.announce(session, "new", is_training=False)
        assert list(session.scalars(select(ModelServer.key))) == ["held"]
        assert list(session.scalars(select(ChatWorker.name))) == ["new"]


def test_only_one_process_of_a_host_answers(tmp_path: Path) -> None:
    with only_one(tmp_path) as is_first, only_one(tmp_path) as is_second:
        assert (is_first, is_second) == (True, False)
    with only_one(tmp_path) as is_first:
        assert is_first


def test_a_container_that_shares_the_home_answers_beside_a_frozen_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with only_one(tmp_path) as is_first:
        monkeypatch.setattr("socket.gethostname", lambda: "another-container")
        with only_one(tmp_path) as is_second:
            assert (is_first, is_second) == (True, True)
