"""Requests per second and open streams of a tenant, and what OpenAI's client makes of a refusal."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI
from openai import DefaultHttpxClient, OpenAI

from service.app import create_app
from service.jobs.model.states import JobState
from service.platform.db import Database
from service.platform.errors import TooManyRequests
from service.settings import Settings
from service.web.auth import create_key
from service.web.limits import ConcurrencyLimit, RequestRate
from tests.conftest import on_sqlite
from tests.service.files.file_samples import ROWS
from tests.service.job_samples import add_job
from tests.service.web.test_limits import limited, refusal
from tests.support.servers import wait_until
from tests.threads import at_once

pytestmark = on_sqlite  # none of this depends on the database

JOBS = "/v1/fine_tuning/jobs"


class Clock:
    """A clock that only tests advance."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def link_to(database: Database, job_id: str) -> str:
    """The key of a shared link."""
    with database.transaction() as session:
        return create_key(session, "tenant-a", job_id=job_id)


def num_allowed(rate: RequestRate, tenant: str = "a", most: int = 100) -> int:
    """Requests until the first refusal."""
    for number in range(most):
        try:
            rate.spend(tenant)
        except TooManyRequests:
            return number
    return most


@pytest.mark.parametrize(("per_second", "at_once"), [(10, 10), (3, 3), (1, 1), (0.5, 1), (49, 49)])
def test_a_bucket_holds_one_seconds_worth_and_at_least_one(per_second: float, at_once: int) -> None:
    assert num_allowed(RequestRate(per_second, Clock())) == at_once


def test_a_bucket_fills_again_at_the_rate_and_no_further() -> None:
    clock = Clock()
    rate = RequestRate(4, clock)
    assert num_allowed(rate) == 4
    clock.now += 0.5
    assert num_allowed(rate) == 2
    clock.now += 3600
    assert num_allowed(rate) == 4


def test_a_request_after_retry_after_is_accepted() -> None:
    clock = Clock()
    rate = RequestRate(0.4, clock)
    rate.spend("a")
    clock.now += 1
    with pytest.raises(TooManyRequests) as caught:
        rate.spend("a")
    assert caught.value.headers == {"Retry-After": "2"}
    clock.now += 2
    rate.spend("a")


def test_each_tenant_has_its_own_bucket() -> None:
    rate = RequestRate(2, Clock())
    assert [num_allowed(rate, tenant) for tenant in "aba"] == [2, 2, 0]


def test_without_a_rate_no_request_is_refused() -> None:
    assert num_allowed(RequestRate(None, Clock())) == 100


def test_concurrent_threads_get_no_more_than_the_bucket_holds() -> None:
    rate = RequestRate(25, Clock())
    assert sum(at_once(16, lambda _: num_allowed(rate))) == 25


def test_operations_are_limited_for_each_tenant_and_overall_until_they_end() -> None:
    limit = ConcurrencyLimit("grader runs", per_tenant=2, overall=3)

    def is_refused(tenant: str) -> bool:
        try:
            with limit.slot(tenant):
                return False
        except TooManyRequests as error:
            return "Too many grader runs (limit: 2 per tenant, 3 overall)." in error.message

    with limit.slot("a"), limit.slot("a"):
        assert (is_refused("a"), is_refused("b"), limit.num_running) == (True, False, 2)
        with limit.slot("b"):
            assert (is_refused("b"), is_refused("c")) == (True, True)
    assert (is_refused("a"), limit.num_running) == (False, 0)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_request_beyond_the_rate_gets_retry_after(settings: Settings, api_key: str, method: str) -> None:
    with limited(settings, api_key, max_requests_per_second=0.001) as client:
        assert client.get("/v1/files").status_code == 200
        answer = client.request(method, "/v1/models")
        assert (answer.status_code, int(answer.headers["retry-after"]) > 900) == (429, True)
        assert [client.get(path).status_code for path in ("/livez", "/readyz")] == [200, 200]


def test_a_wrong_key_spends_nothing_of_a_tenants_rate(settings: Settings, api_key: str) -> None:
    with limited(settings, api_key, max_requests_per_second=0.001) as client:
        wrong = {"authorization": f"Bearer {api_key[:-1]}" + ("a" if api_key[-1] != "a" else "b")}
        assert [client.get("/v1/files", headers=wrong).status_code for _ in range(3)] == [401] * 3
        assert client.get("/v1/files").status_code == 200


def test_viewers_of_a_shared_link_use_up_nothing_of_the_tenants_rate(
    settings: Settings, api_key: str, database: Database
) -> None:
    job_id = add_job(database, JobState.SUCCEEDED)
    with limited(settings, api_key, max_requests_per_second=0.001) as client:
        viewer = {"authorization": f"Bearer {link_to(database, job_id)}"}
        path = f"{JOBS}/{job_id}"
        assert [client.get(path, headers=viewer).status_code for _ in range(3)] == [200, 429, 429]
        assert client.get(path).status_code == 200


@pytest.fixture
def app(settings: Settings) -> FastAPI:
    limits = {"max_streams": 2, "max_stored_bytes": len(ROWS)}
    return create_app(settings.model_copy(update=limits))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def seen() -> list[int]:
    """Statuses of the answers that OpenAI's client got."""
    return []


@pytest.fixture
def retrying_client(server_url: str, api_key: str, clock: Clock, seen: list[int]) -> Iterator[OpenAI]:
    """OpenAI's unmodified client; the service's clock advances while it waits after a refusal."""

    def note(answer: httpx.Response) -> None:
        seen.append(answer.status_code)
        clock.now += answer.status_code == 429

    transport = DefaultHttpxClient(event_hooks={"response": [note]})
    with OpenAI(base_url=f"{server_url}/v1", api_key=api_key, http_client=transport) as client:
        yield client


def test_openais_client_waits_and_is_served(
    retrying_client: OpenAI, app: FastAPI, clock: Clock, seen: list[int]
) -> None:
    app.state.request_rate = RequestRate(1, clock)
    retrying_client.models.list()
    assert retrying_client.models.list().data == []
    assert seen == [200, 429, 200]


def test_openais_client_does_not_send_a_file_again_for_which_there_is_no_space(
    retrying_client: OpenAI, seen: list[int]
) -> None:
    retrying_client.files.create(file=("a.jsonl", ROWS), purpose="fine-tune")
    with pytest.raises(openai.RateLimitError) as caught:
        retrying_client.files.create(file=("a.jsonl", ROWS + b"\n"), purpose="fine-tune")
    assert caught.value.code == "storage_quota_exceeded"
    assert seen == [200, 429]


def test_a_tenant_opens_as_many_streams_as_allowed(
    server_url: str, app: FastAPI, api_key: str, other_api_key: str, database: Database
) -> None:
    job_id = add_job(database, JobState.RUNNING)
    theirs = add_job(database, JobState.RUNNING, tenant="tenant-b")
    mine, other = ({"authorization": f"Bearer {key}"} for key in (api_key, other_api_key))
    with httpx.Client(base_url=server_url, timeout=30) as http, ExitStack() as open_:

        def opened(job: str, headers: dict[str, str]) -> Any:
            return open_.enter_context(http.stream("GET", f"{JOBS}/{job}/stream", headers=headers))

        first, second = opened(job_id, mine), opened(job_id, mine)
        assert [first.status_code, second.status_code] == [200, 200]
        refused = http.get(f"{JOBS}/{job_id}/stream", headers=mine)
        assert refusal(refused) == (429, "too_many_streams")
        assert refused.headers["retry-after"] == "30"
        assert opened(theirs, other).status_code == 200
        first.close()
        wait_until(lambda: app.state.stream_limit.num_running == 2, what="the place is free")
        assert opened(job_id, mine).status_code == 200


def test_streams_of_a_shared_link_take_no_place_of_the_tenant(
    server_url: str, api_key: str, database: Database
) -> None:
    job_id = add_job(database, JobState.RUNNING)
    mine, viewer = ({"authorization": f"Bearer {key}"} for key in (api_key, link_to(database, job_id)))
    path = f"{JOBS}/{job_id}/stream"
    with httpx.Client(base_url=server_url, timeout=30) as http, ExitStack() as open_:
        for headers in (viewer, viewer, mine):
            assert open_.enter_context(http.stream("GET", path, headers=headers)).status_code == 200
        assert refusal(http.get(path, headers=viewer)) == (429, "too_many_streams")


def test_a_request_that_opens_no_stream_does_not_count(
    server_url: str, app: FastAPI, api_key: str, database: Database
) -> None:
    job_id = add_job(database, JobState.RUNNING)
    over = add_job(database, JobState.SUCCEEDED, event_sequence=1)
    headers = {"authorization": f"Bearer {api_key}"}
    with httpx.Client(base_url=server_url, headers=headers, timeout=30) as http:
        for _ in range(3):
            assert http.head(f"{JOBS}/{job_id}/stream").status_code == 200
            assert http.get(f"{JOBS}/ftjob-none/stream").status_code == 404
            assert http.get(f"{JOBS}/{job_id}/stream", params={"after": "x"}).status_code == 400
            assert http.get(f"{JOBS}/{over}/stream", headers={"last-event-id": "9"}).status_code == 204
            assert http.get(f"{JOBS}/{over}/stream").status_code == 200
    wait_until(lambda: app.state.stream_limit.num_running == 0, what="all places are free")
