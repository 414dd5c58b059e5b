"""The live stream over a real server: order, resumption, endings, and what is left behind."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import delete

from grpo_engine.process.parent_death import dies_with_this_process
from service.jobs.model.states import JobState
from service.jobs.progress import stream
from service.jobs.store import history
from service.jobs.store.history import HistoryEntry
from service.platform.db import Database
from service.platform.tables.core import Job, JobEvent
from service.settings import Settings
from tests.ports import free_port
from tests.service.jobs.progress.conftest import SECONDS
from tests.support.servers import is_ok, wait_until


@dataclass
class Message:
    id: int
    event: str
    data: dict[str, Any]


@contextmanager
def opened(http: httpx.Client, job_id: str, **more: Any) -> Iterator[Iterator[Message]]:
    with http.stream("GET", f"/{job_id}/stream", **more) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store"
        assert response.headers["x-accel-buffering"] == "no"
        yield messages(response.iter_lines())


def messages(lines: Iterator[str]) -> Iterator[Message]:
    """As a browser's EventSource reads them."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            yield Message(int(fields["id"]), fields["event"], json.loads(fields["data"]))
            fields = {}
        else:
            fields = {}


def record(database: Database, job_id: str, *entries: HistoryEntry) -> None:
    with database.transaction() as session:
        history.append(session, job_id, *entries)


def step(number: int) -> HistoryEntry:
    return HistoryEntry("metrics", f"Step {number}", data={"step": number, "reward": number / 10})


def finish(database: Database, job_id: str) -> None:
    with database.transaction() as session:
        job = session.get(Job, job_id)
        assert job is not None
        job.state = JobState.SUCCEEDED.value
        session.flush()
        history.append(
            session, job_id, history.status(JobState.SUCCEEDED, "done", phase="succeeded", fence=1)
        )


def test_history_comes_first_then_what_is_new_then_the_end(
    http: httpx.Client, database: Database, job_id: str
) -> None:
    record(database, job_id, HistoryEntry("message", "hello"), step(1))
    with opened(http, job_id) as stream_:
        first, second = next(stream_), next(stream_)
        record(database, job_id, step(2))
        third = next(stream_)
        finish(database, job_id)
        rest = list(stream_)
    assert (first.id, first.event, first.data["message"]) == (1, "event", "hello")
    assert first.data["object"] == "fine_tuning.job.event"
    assert (second.id, second.event, second.data) == (2, "metrics", {"step": 1, "reward": 0.1})
    assert (third.id, third.data["step"]) == (3, 2)
    assert [(message.id, message.event) for message in rest] == [(4, "status")]
    assert rest[0].data == {"status": "succeeded", "state": "succeeded", "phase": "succeeded"}


def test_a_deleted_job_ends_its_stream(http: httpx.Client, database: Database, job_id: str) -> None:
    record(database, job_id, HistoryEntry("message", "hello"))
    with opened(http, job_id) as stream_:
        assert next(stream_).id == 1
        with database.transaction() as session:
            session.get_one(Job, job_id).state = JobState.CANCELLED.value
            session.flush()
            session.execute(delete(JobEvent).where(JobEvent.job_id == job_id))
            session.execute(delete(Job).where(Job.id == job_id))
        assert list(stream_) == []


def test_a_resumed_stream_neither_loses_nor_repeats_events(
    http: httpx.Client, database: Database, job_id: str
) -> None:
    seen: list[int] = []
    writer = threading.Thread(target=_write_many, args=(database, job_id, 300))
    writer.start()
    while not seen or seen[-1] < 301:
        headers = {"Last-Event-ID": str(seen[-1])} if seen else {}
        with opened(http, job_id, headers=headers) as stream_:
            for taken, message in enumerate(stream_, start=1):
                seen.append(message.id)
                if taken == 40:
                    break
    writer.join()
    assert seen == list(range(1, 302))


def _write_many(database: Database, job_id: str, num: int) -> None:
    for number in range(1, num + 1):
        record(database, job_id, step(number))
    finish(database, job_id)


def test_a_history_longer_than_a_page_comes_whole(
    http: httpx.Client, database: Database, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "PAGE_ROWS", 7)
    record(database, job_id, *[step(number) for number in range(1, 31)])
    finish(database, job_id)
    with opened(http, job_id) as stream_:
        assert [message.id for message in stream_] == list(range(1, 32))


def test_a_burst_longer_than_a_page_comes_whole(
    http: httpx.Client, database: Database, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "PAGE_ROWS", 7)
    record(database, job_id, step(1))
    with opened(http, job_id) as stream_:
        next(stream_)
        record(database, job_id, *[step(number) for number in range(2, 31)])
        finish(database, job_id)
        assert [message.id for message in stream_] == list(range(2, 32))


def test_a_stream_can_start_anywhere(http: httpx.Client, database: Database, job_id: str) -> None:
    record(database, job_id, step(1), step(2), step(3))
    with opened(http, job_id, params={"after": 2}) as stream_:
        assert next(stream_).id == 3
    with opened(http, job_id, params={"from": "now"}) as stream_:
        record(database, job_id, step(4))
        assert next(stream_).id == 4


def test_many_streams_share_one_poller(
    app: FastAPI, http: httpx.Client, database: Database, job_id: str
) -> None:
    record(database, job_id, step(1))
    with opened(http, job_id) as one, opened(http, job_id) as two:
        assert [next(one).id, next(two).id] == [1, 1]
        assert app.state.job_feed.num_subscribers == 2
        record(database, job_id, step(2))
        assert [next(one).id, next(two).id] == [2, 2]


def test_a_client_is_counted_and_leaves_nothing_behind(
    app: FastAPI, server_url: str, http: httpx.Client, database: Database, job_id: str
) -> None:
    record(database, job_id, step(1))
    with opened(http, job_id) as stream_:
        next(stream_)
        assert app.state.job_feed.num_subscribers == 1
        assert "grpo_sse_clients 1.0" in httpx.get(f"{server_url}/metrics", timeout=60).text
    wait_until(lambda: app.state.job_feed.num_subscribers == 0, what="no watcher is left")
    wait_until(lambda: app.state.job_feed._task.done(), what="the poller has ended")


def test_an_idle_stream_is_kept_alive(
    http: httpx.Client, database: Database, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "PING_SECONDS", 0.05)
    with http.stream("GET", f"/{job_id}/stream") as response:
        assert next(line for line in response.iter_lines() if line.startswith(":")) == ": ping"


def test_a_finished_job_is_streamed_and_then_there_is_no_content(
    http: httpx.Client, database: Database, job_id: str
) -> None:
    record(database, job_id, step(1))
    finish(database, job_id)
    with opened(http, job_id) as stream_:
        last = list(stream_)[-1].id
    assert last == 2
    assert http.get(f"/{job_id}/stream", headers={"Last-Event-ID": "2"}).status_code == 204
    assert http.get(f"/{job_id}/stream?after=2").status_code == 204
    assert http.get(f"/{job_id}/stream?from=now").status_code == 204
    assert http.get(f"/{job_id}/stream?after=1").status_code == 200


def test_a_place_that_is_none_is_refused(http: httpx.Client, job_id: str) -> None:
    answer = http.get(f"/{job_id}/stream", headers={"Last-Event-ID": "x"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Last-Event-ID")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_server_that_stops_ends_its_streams(
    settings: Settings, database: Database, api_key: str, job_id: str
) -> None:
    record(database, job_id, step(1))
    with served(settings) as (process, url):
        headers = {"authorization": f"Bearer {api_key}"}
        with httpx.stream(
            "GET", f"{url}/v1/fine_tuning/jobs/{job_id}/stream", headers=headers, timeout=SECONDS
        ) as response:
            stream_ = messages(response.iter_lines())
            assert next(stream_).id == 1
            process.send_signal(signal.SIGTERM)
            assert list(stream_) == []
        process.wait(timeout=SECONDS)


@contextmanager
def served(settings: Settings) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """uvicorn as a process of its own, without any limit on how long it waits for open answers."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "service.app:create_app", "--factory", "--port", str(port)]
    variables = {"GRPO_HOME": str(settings.home), "GRPO_DATABASE_URL": settings.sqlalchemy_url}
    process = subprocess.Popen(
        [*command, "--log-level", "warning"],
        env=os.environ | variables,
        preexec_fn=dies_with_this_process(signal.SIGKILL),
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: is_ok(f"{url}/livez"), seconds=120, what="uvicorn answers")
        yield process, url
    finally:
        process.kill()
        process.wait(timeout=SECONDS)
