"""The API dies or loses its database during a request: one job is made, and no partial file."""

import itertools
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx
import psycopg
import pytest

from service.jobs.model.states import JobState
from service.jobs.store import history
from service.platform.db import Database, connect
from service.settings import Settings
from tests.conftest import settings_for
from tests.e2e.api import Api, api_process
from tests.service.job_samples import add_job
from tests.support.proxy import Proxy
from tests.support.servers import Postgres

POINTS = ("job.checked", "job.inserted", "job.committed", "job.wakeup_sent")
"""Two before the commit, two after it."""


@pytest.fixture(scope="module")
def new_url(postgres_server: Postgres, postgres_template: str) -> Callable[[], str]:
    """Makes a migrated database and returns its URL."""
    numbers = itertools.count(1)

    def make() -> str:
        name = f"api_faults_{next(numbers)}"
        postgres_server.copy(postgres_template, name)
        return postgres_server.url_of(name)

    return make


def all_of(points: Sequence[str]) -> str:
    """`GRPO_FAULT` of an API that dies once at each of these points."""
    return ",".join(f"{point}:kill" for point in points)


def is_killed(api: Api, point: str) -> bool:
    """Wait for the end of the API: whether it died at this point."""
    return api.wait() == -signal.SIGKILL and (api.marks / point).exists()


@dataclass
class Killed:
    """An API on PostgreSQL that died once at each of `POINTS` while a job was posted; it runs again."""

    api: Api
    file_id: str
    made: list[str]
    """Ids of the jobs that the interrupted requests made."""
    watched: str
    first: list[tuple[int, str]]
    """Events of job `watched` that were received before the kills."""


def add_watched(database: Database) -> str:
    """A job with six events."""
    job_id = add_job(database, JobState.PAUSED, tenant="acme")
    for number in range(6):
        with database.transaction() as session:
            history.append(session, job_id, history.HistoryEntry("message", f"note {number}"))
    return job_id


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, new_url: Callable[[], str]) -> Iterator[Killed]:
    settings = settings_for(tmp_path_factory.mktemp("killed") / "home", new_url())
    database = connect(settings)
    watched = add_watched(database)
    database.engine.dispose()
    with api_process(settings) as api:
        api.start(all_of(POINTS))
        file_id, first = api.upload().json()["id"], api.messages(watched, 0, 3)
        for point in POINTS:
            with pytest.raises(httpx.TransportError):
                api.post_job(file_id, point)
            assert is_killed(api, point)
            api.start(all_of(POINTS))
        made = [job["id"] for job in reversed(api.jobs()) if job["id"] != watched]
        yield Killed(api, file_id, made, watched, first)


def test_a_post_repeated_after_the_api_was_killed_makes_one_job(killed: Killed) -> None:
    """Before and after the commit, the same key leads to one job."""
    assert len(killed.made) == 2, "two requests were killed after the commit"
    again = [killed.api.post_job(killed.file_id, point) for point in POINTS]
    assert [answer.status_code for answer in again] == [200] * len(POINTS)
    ids = [answer.json()["id"] for answer in again]
    assert ids[2:] == killed.made
    assert sorted(job["id"] for job in killed.api.jobs()) == sorted([*ids, killed.watched])


def test_a_stream_continues_without_loss_after_the_api_was_killed(killed: Killed) -> None:
    received = [*killed.first, *killed.api.messages(killed.watched, killed.first[-1][0], 3)]
    assert received == [(number + 1, f"note {number}") for number in range(6)]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_upload_during_which_the_api_is_killed_is_complete_or_missing(
    settings: Settings, database: Database
) -> None:
    points = ("storage.put", "upload.stored", "upload.committed")
    with api_process(settings) as api:
        api.start(all_of(points))
        for point in points:
            with pytest.raises(httpx.TransportError):
                api.upload()
            assert is_killed(api, point)
            api.start(all_of(points))
            found = api.client.get("/v1/files").json()["data"]
            assert len(found) == (1 if point == "upload.committed" else 0)
        assert len(api.client.get(f"/v1/files/{found[0]['id']}/content").content) == found[0]["bytes"]
        assert api.upload().status_code == 200


@dataclass
class Distant:
    """An API that connects to PostgreSQL through the proxy."""

    api: Api
    proxy: Proxy
    database_url: str
    """Without the proxy."""


@pytest.fixture(scope="module")
def distant(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: Postgres, new_url: Callable[[], str]
) -> Iterator[Distant]:
    url = new_url()
    with Proxy(postgres_server.port) as proxy:
        there = f"postgresql://grpo@127.0.0.1:{proxy.port}/{url.rpartition('/')[2]}"
        with api_process(settings_for(tmp_path_factory.mktemp("distant") / "home", there)) as api:
            api.start()
            yield Distant(api, proxy, url)


def test_a_post_repeated_after_an_unconfirmed_commit_makes_one_job(distant: Distant) -> None:
    file_id, num_cut = distant.api.upload().json()["id"], distant.proxy.num_cut
    distant.proxy.cut_after(b"INSERT INTO jobs", b"COMMIT")
    lost = distant.api.post_job(file_id, "tonight")
    assert (lost.status_code, distant.proxy.num_cut - num_cut) == (503, 1)
    assert lost.headers["retry-after"] == "5"
    repeated = distant.api.post_job(file_id, "tonight")
    assert (repeated.status_code, repeated.headers["idempotency-replayed"]) == (200, "true")
    assert [job["id"] for job in distant.api.jobs()] == [repeated.json()["id"]]


def test_an_upload_with_an_unconfirmed_commit_is_complete(distant: Distant) -> None:
    distant.proxy.cut_after(b"INSERT INTO files", b"COMMIT")
    statuses = [distant.api.upload("What is 4+2?").status_code for _ in range(2)]
    assert statuses == [503, 200]
    client = distant.api.client
    for file in client.get("/v1/files").json()["data"]:
        assert len(client.get(f"/v1/files/{file['id']}/content").content) == file["bytes"]


def test_requests_that_wait_for_a_locked_table_are_refused_with_retry_after(distant: Distant) -> None:
    """All connections wait: requests time out, the process stays alive, and it recovers afterwards."""
    client = distant.api.client
    with psycopg.connect(distant.database_url) as other, ThreadPoolExecutor(30) as crowd:
        other.execute("LOCK TABLE api_keys IN ACCESS EXCLUSIVE MODE")
        responses = [crowd.submit(client.get, "/v1/fine_tuning/jobs") for _ in range(30)]
        refused = next(each.result() for each in responses if each.result().status_code != 200)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert refused.json()["error"]["type"] == "server_error"
        assert httpx.get(f"{distant.api.url}/livez", timeout=60).status_code == 200
        other.rollback()
        assert {each.result().status_code for each in responses} <= {200, 503}
    assert client.get("/v1/fine_tuning/jobs").status_code == 200
