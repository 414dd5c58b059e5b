"""Limits under concurrent requests: never one more than allowed, and every refusal has a `Retry-After`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.files import service as files_service
from service.jobs.intake import creation
from service.jobs.model.states import JobState
from service.platform.db import Database
from service.settings import Settings
from service.web.auth import create_key, revoke_key
from service.web.limits import UNFINISHED_JOBS_RETRY_SECONDS
from tests.service.files.file_samples import ROWS, stored, uploaded
from tests.service.job_samples import add_artifact, add_job, make_model, num_jobs, request, upload
from tests.service.serving.processes import serving
from tests.threads import at_once

JOBS = "/v1/fine_tuning/jobs"
LIMIT = 7


@contextmanager
def limited(settings: Settings, api_key: str, **limits: Any) -> Iterator[TestClient]:
    """A client of an API process with these limits."""
    app = create_app(settings.model_copy(update=limits))
    with TestClient(app, headers={"authorization": f"Bearer {api_key}"}) as client:
        yield client


def refusal(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def post_to_each(
    urls: Sequence[str], api_key: str, path: str, body_of: Callable[[int], dict[str, Any]]
) -> list[httpx.Response]:
    """The answers to a hundred requests at once, each on its own connection, over all API processes."""
    headers, limits = {"authorization": f"Bearer {api_key}"}, httpx.Limits(max_connections=100)
    with httpx.Client(headers=headers, limits=limits, timeout=60) as client:

        def post(number: int) -> httpx.Response:
            return client.post(urls[number % len(urls)] + path, **body_of(number))

        return at_once(100, post)


@pytest.fixture
def two_services(settings: Settings) -> Iterator[Callable[..., list[str]]]:
    """Starts two API processes of one deployment, each with its own connections; answers their URLs."""
    with ExitStack() as running:

        def start(**limits: Any) -> list[str]:
            apps = [create_app(settings.model_copy(update=limits)) for _ in range(2)]
            urls = [running.enter_context(serving(app)) for app in apps]
            # routes are made with the first request, and both event loops of this one process share them
            assert [httpx.get(f"{url}/v1/nothing", timeout=60).status_code for url in urls] == [404, 404]
            return urls

        yield start


def test_a_hundred_concurrent_posts_create_as_many_jobs_as_are_allowed(
    two_services: Callable[..., list[str]],
    settings: Settings,
    api_key: str,
    database: Database,
) -> None:
    make_model(settings.home)
    urls = two_services(max_queued_jobs=LIMIT)
    with httpx.Client(base_url=urls[0], headers={"authorization": f"Bearer {api_key}"}, timeout=60) as client:
        file_id = upload(client)  # type: ignore[arg-type]
    add_job(database, JobState.SUCCEEDED)
    answers = post_to_each(urls, api_key, JOBS, lambda number: {"json": request(file_id)})
    refused = [answer for answer in answers if answer.status_code != 200]
    assert len(refused) == 100 - LIMIT
    assert {refusal(answer) for answer in refused} == {(429, "quota_exceeded")}
    message = f"Limit of {LIMIT} unfinished jobs reached. Wait for one to finish, or cancel one."
    assert {answer.json()["error"]["message"] for answer in refused} == {message}
    assert {answer.headers["retry-after"] for answer in refused} == {str(UNFINISHED_JOBS_RETRY_SECONDS)}
    assert num_jobs(database) == LIMIT + 1


def test_a_hundred_concurrent_uploads_store_as_many_bytes_as_are_allowed(
    two_services: Callable[..., list[str]], settings: Settings, api_key: str
) -> None:
    def form(number: int) -> dict[str, Any]:
        content = ROWS.replace(b"4", b"%d" % (100 + number))
        return {"files": {"file": ("a.jsonl", content)}, "data": {"purpose": "fine-tune"}}

    num_bytes = len(ROWS.replace(b"4", b"100"))
    urls = two_services(max_stored_bytes=LIMIT * num_bytes + num_bytes // 2)
    answers = post_to_each(urls, api_key, "/v1/files", form)
    refused = [answer for answer in answers if answer.status_code != 200]
    assert len(refused) == 100 - LIMIT
    assert {refusal(answer) for answer in refused} == {(429, "storage_quota_exceeded")}
    assert len(stored(settings)) == LIMIT


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.PAUSED, JobState.RUNNING, JobState.CANCELLING])
def test_a_job_counts_until_it_is_over(
    settings: Settings, api_key: str, database: Database, state: JobState
) -> None:
    make_model(settings.home)
    with limited(settings, api_key, max_queued_jobs=1) as client:
        body = request(upload(client))
        add_job(database, state)
        assert refusal(client.post(JOBS, json=body)) == (429, "quota_exceeded")


def test_a_cancelled_job_counts_until_its_worker_has_ended_it(
    settings: Settings, api_key: str, database: Database
) -> None:
    """A job that a worker still runs counts until it has ended."""
    make_model(settings.home)
    with limited(settings, api_key, max_queued_jobs=1) as client:
        body = request(upload(client))
        running = add_job(database, JobState.RUNNING)
        for _ in range(3):
            assert client.post(f"{JOBS}/{running}/cancel").status_code == 200
            assert refusal(client.post(JOBS, json=body)) == (429, "quota_exceeded")


def test_results_count_as_stored_and_deleting_makes_room(
    settings: Settings, api_key: str, database: Database
) -> None:
    with limited(settings, api_key, max_stored_bytes=3 * len(ROWS)) as client:
        first = uploaded(client)
        add_artifact(settings, database, add_job(database, JobState.SUCCEEDED), "adapter", bytes(len(ROWS)))
        uploaded(client, ROWS.replace(b"4", b"5"))
        form: Any = {
            "files": {"file": ("a.jsonl", ROWS.replace(b"4", b"6"))},
            "data": {"purpose": "fine-tune"},
        }
        answer = client.post("/v1/files", **form)
        assert refusal(answer) == (429, "storage_quota_exceeded")
        assert str(3 * len(ROWS)) in answer.json()["error"]["message"]
        assert (answer.headers["retry-after"], answer.headers["x-should-retry"]) == ("3600", "false")
        client.delete(f"/v1/files/{first}")
        assert client.post("/v1/files", **form).status_code == 200


def test_a_tenant_without_space_for_results_starts_no_job(
    settings: Settings, api_key: str, database: Database
) -> None:
    make_model(settings.home)
    with limited(settings, api_key) as client:
        body = request(upload(client))
    with limited(settings, api_key, max_stored_bytes=10) as client:
        assert refusal(client.post(JOBS, json=body)) == (429, "storage_quota_exceeded")
    assert num_jobs(database) == 0


def test_limits_apply_to_each_tenant_separately(settings: Settings, api_key: str, other_api_key: str) -> None:
    with limited(settings, api_key, max_stored_bytes=len(ROWS), max_requests_per_second=0.001) as client:
        uploaded(client)
        assert refusal(client.get("/v1/files")) == (429, "rate_limit_exceeded")
        uploaded_by_other = client.post(
            "/v1/files",
            headers={"authorization": f"Bearer {other_api_key}"},
            files={"file": ("a.jsonl", ROWS)},
            data={"purpose": "fine-tune"},
        )
        assert uploaded_by_other.status_code == 200


@pytest.mark.parametrize("what", ["file", "job"])
def test_a_key_that_is_revoked_while_its_request_is_prepared_changes_nothing(
    settings: Settings, api_key: str, database: Database, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large upload, or the check of a large dataset, takes longer than it takes to revoke a key."""
    make_model(settings.home)
    with database.transaction() as session:
        stolen = create_key(session, "tenant-a")

    def losing_the_key(prepare: Callable[..., Any]) -> Callable[..., Any]:
        def prepared(*given: Any, **named: Any) -> Any:
            done = prepare(*given, **named)
            with database.transaction() as session:
                revoke_key(session, stolen.split("_")[1])
            return done

        return prepared

    with limited(settings, api_key) as client:
        file_id = upload(client)
        thief = {"authorization": f"Bearer {stolen}"}
        if what == "file":
            monkeypatch.setattr(files_service, "check_dataset", losing_the_key(files_service.check_dataset))
            form: Any = {"files": {"file": ("a.jsonl", ROWS)}, "data": {"purpose": "fine-tune"}}
            answer = client.post("/v1/files", headers=thief, **form)
        else:
            check = losing_the_key(creation.Preflight.check)
            monkeypatch.setattr(creation.Preflight, "check", check)
            answer = client.post(JOBS, headers=thief, json=request(file_id))
    assert refusal(answer) == (401, "invalid_api_key")
    assert (len(stored(settings)), num_jobs(database)) == (1, 0)
