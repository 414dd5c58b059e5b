"""The API dies or loses its database during a request: one job is made, and no partial file."""

import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
import psycopg
import pytest

from service.jobs.store import history
from service.platform.db import Database
from service.settings import Settings
from tests.conftest import settings_for
from tests.e2e.api import Api, api_process
from tests.support.proxy import Proxy
from tests.support.servers import Postgres


@pytest.fixture
def api(settings: Settings, database: Database) -> Iterator[Api]:
    with api_process(settings) as api:
        yield api


@pytest.fixture
def proxy(postgres_server: Postgres) -> Iterator[Proxy]:
    with Proxy(postgres_server.port) as proxy:
        yield proxy


@pytest.fixture
def far_api(settings: Settings, postgres_url: str, proxy: Proxy) -> Iterator[Api]:
    """An API that connects to PostgreSQL through the proxy."""
    name = postgres_url.rpartition("/")[2]
    there = f"postgresql://grpo@127.0.0.1:{proxy.port}/{name}"
    with api_process(settings_for(**settings.model_dump() | {"database_url": there})) as api:
        api.start()
        yield api


def all_of(points: Sequence[str]) -> str:
    """`GRPO_FAULT` of an API that dies once at each of these points."""
    return ",".join(f"{point}:kill" for point in points)


def test_a_post_repeated_after_the_api_was_killed_makes_one_job(api: Api) -> None:
    """Before and after the commit, the same key leads to one job."""
    points = ("job.checked", "job.inserted", "job.committed", "job.rung")
    api.start(all_of(points))
    file_id, made = api.upload().json()["id"], list[str]()
    for point in points:
        with pytest.raises(httpx.TransportError):
            api.post_job(file_id, point)
        assert api.wait() == -signal.SIGKILL
        assert (api.marks / point).exists()
        api.start(all_of(points))
        made += [job["id"] for job in api.jobs() if job["id"] not in made]
    assert len(made) == 2, "two requests were killed after the commit"
    again = [api.post_job(file_id, point) for point in points]
    assert [answer.status_code for answer in again] == [200] * len(points)
    assert [answer.json()["id"] for answer in again[2:]] == made
    assert sorted(job["id"] for job in api.jobs()) == sorted(answer.json()["id"] for answer in again)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_upload_during_which_the_api_is_killed_is_complete_or_missing(api: Api) -> None:
    points = ("storage.put", "upload.stored", "upload.committed")
    api.start(all_of(points))
    for point in points:
        with pytest.raises(httpx.TransportError):
            api.upload()
        assert api.wait() == -signal.SIGKILL
        assert (api.marks / point).exists()
        api.start(all_of(points))
        found = api.client.get("/v1/files").json()["data"]
        assert len(found) == (1 if point == "upload.committed" else 0)
    assert len(api.client.get(f"/v1/files/{found[0]['id']}/content").content) == found[0]["bytes"]
    assert api.upload().status_code == 200


def test_a_stream_continues_without_loss_after_the_api_was_killed(api: Api, database: Database) -> None:
    api.start()
    job_id = api.post_job(api.upload().json()["id"], "watched").json()["id"]
    for number in range(6):
        with database.transaction() as session:
            history.append(session, job_id, history.HistoryEntry("message", f"note {number}"))
    first = api.messages(job_id, 0, 4)
    api.kill()
    api.start()
    received = [*first, *api.messages(job_id, first[-1][0], 4)]
    assert [number for number, _ in received] == list(range(1, 9))
    assert [message for _, message in received[2:]] == [f"note {number}" for number in range(6)]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_post_repeated_after_an_unconfirmed_commit_makes_one_job(far_api: Api, proxy: Proxy) -> None:
    file_id = far_api.upload().json()["id"]
    proxy.cut_after(b"INSERT INTO jobs", b"COMMIT")
    lost = far_api.post_job(file_id, "tonight")
    assert (lost.status_code, proxy.num_cut) == (503, 1)
    assert lost.headers["retry-after"] == "5"
    repeated = far_api.post_job(file_id, "tonight")
    assert (repeated.status_code, repeated.headers["idempotency-replayed"]) == (200, "true")
    assert [job["id"] for job in far_api.jobs()] == [repeated.json()["id"]]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_an_upload_with_an_unconfirmed_commit_is_complete(far_api: Api, proxy: Proxy) -> None:
    proxy.cut_after(b"INSERT INTO files", b"COMMIT")
    statuses = [far_api.upload().status_code, far_api.upload().status_code]
    assert statuses == [503, 200]
    for file in far_api.client.get("/v1/files").json()["data"]:
        assert len(far_api.client.get(f"/v1/files/{file['id']}/content").content) == file["bytes"]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_requests_that_wait_for_a_locked_table_are_refused_with_retry_after(
    api: Api, postgres_url: str
) -> None:
    """All connections wait: requests time out, the process stays alive, and it recovers afterwards."""
    api.start()
    with psycopg.connect(postgres_url) as other, ThreadPoolExecutor(30) as crowd:
        other.execute("LOCK TABLE api_keys IN ACCESS EXCLUSIVE MODE")
        responses = [crowd.submit(api.client.get, "/v1/fine_tuning/jobs") for _ in range(30)]
        refused = next(each.result() for each in responses if each.result().status_code != 200)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert refused.json()["error"]["type"] == "server_error"
        assert httpx.get(f"{api.url}/livez").status_code == 200
        other.rollback()
        assert {each.result().status_code for each in responses} <= {200, 503}
    assert api.client.get("/v1/fine_tuning/jobs").status_code == 200
