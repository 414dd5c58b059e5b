"""Many slow requests of one key do not delay the requests of other keys."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from service.files.service import Files
from service.jobs.intake.preflight import Preflight
from service.platform.errors import InvalidRequest
from service.web.per_key_concurrency import REQUESTS_PER_KEY, UPLOADS_PER_KEY
from tests.service.job_samples import request
from tests.support.servers import wait_until

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
CROWD = 60
"""More than a server has threads."""


class Slow:
    """Replaces work with a wait until the test ends it."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.most = self.num_inside = 0
        self._lock = threading.Lock()

    def __call__(self, *_arguments: object) -> None:
        with self._lock:
            self.num_inside += 1
            self.most = max(self.most, self.num_inside)
        self.may_end.wait(60)
        with self._lock:
            self.num_inside -= 1
        raise InvalidRequest("done")


def check(client: httpx.Client) -> httpx.Response:
    return client.post("/v1/fine_tuning/jobs/validate", json=request("file-1"))


def upload(client: httpx.Client) -> httpx.Response:
    form = {"files": {"file": ("a.jsonl", b"{}\n")}, "data": {"purpose": "fine-tune"}}
    return client.post("/v1/files", **form)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("place", "send", "limit"),
    [((Preflight, "check"), check, REQUESTS_PER_KEY), ((Files, "upload"), upload, UPLOADS_PER_KEY)],
    ids=["checks", "uploads"],
)
def test_many_slow_requests_of_one_key_do_not_block_other_keys(
    server_url: str,
    api_key: str,
    other_api_key: str,
    monkeypatch: pytest.MonkeyPatch,
    place: tuple[type, str],
    send: Callable[[httpx.Client], httpx.Response],
    limit: int,
) -> None:
    slow = Slow()
    monkeypatch.setattr(*place, slow)
    limits = httpx.Limits(max_connections=CROWD)
    theirs = {"authorization": f"Bearer {api_key}"}
    mine = {"authorization": f"Bearer {other_api_key}"}
    with (
        httpx.Client(base_url=server_url, headers=theirs, limits=limits, timeout=60) as crowd,
        httpx.Client(base_url=server_url, headers=mine, timeout=30) as other,
        ThreadPoolExecutor(CROWD) as threads,
    ):
        responses = [threads.submit(send, crowd) for _ in range(CROWD)]
        wait_until(lambda: slow.num_inside == limit, 120, "the limit is reached")
        assert other.get("/v1/files").status_code == 200
        slow.may_end.set()
        assert {each.result().status_code for each in responses} == {400}
    assert slow.most == limit


def test_every_finished_request_frees_its_place(server_url: str, api_key: str) -> None:
    """Also requests that fail or are refused."""
    headers = {"authorization": f"Bearer {api_key}"}
    with httpx.Client(base_url=server_url, headers=headers, timeout=30) as client:
        for number in range(REQUESTS_PER_KEY + 1):
            answers = [
                client.get("/v1/files"),
                client.get(f"/v1/files/{number}"),
                client.get("/v1/files?limit=0"),
            ]
            assert [answer.status_code for answer in answers] == [200, 404, 400]
