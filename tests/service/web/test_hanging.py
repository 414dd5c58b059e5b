"""A stopped database: it accepts connections and does not respond."""

import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from service.platform.db import connect
from service.platform.migrate import upgrade
from service.web.auth import create_key
from tests.conftest import settings_for
from tests.ports import free_port
from tests.service.embedded import environment
from tests.support.api_process import running_api
from tests.support.servers import Postgres, is_ok, wait_until

THREADS = 40
"""Of the server's pool, which runs endpoints that are no coroutines."""


@contextmanager
def stopped(server: Postgres) -> Iterator[None]:
    """SIGSTOP to the server and all its processes, one of which may end meanwhile, such as an autovacuum."""
    assert server.process is not None
    main = server.process.pid
    os.kill(main, signal.SIGSTOP)  # starts no further process
    children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
    try:
        _send(signal.SIGSTOP, children)
        yield
    finally:
        _send(signal.SIGCONT, [*children, main])


def _send(number: signal.Signals, pids: Iterable[int | str]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(int(pid), number)


@pytest.fixture
def url(own_postgres: Postgres, tmp_path: Path) -> Iterator[str]:
    """The API as a process, before this database."""
    upgrade(settings_for(tmp_path, own_postgres.url))
    port, variables = free_port(), environment(tmp_path, GRPO_DATABASE_URL=own_postgres.url)
    with running_api(port, variables, tmp_path / "api.log"):
        yield f"http://127.0.0.1:{port}"


def test_with_all_threads_waiting_for_the_database_it_is_alive_not_ready_and_ready_again(
    own_postgres: Postgres, url: str, tmp_path: Path
) -> None:
    database = connect(settings_for(tmp_path, own_postgres.url))
    with database.transaction() as session:
        key = create_key(session, "tenant-a")
    database.engine.dispose()
    answers: list[int] = []

    def request() -> None:
        headers = {"authorization": f"Bearer {key}"}
        answers.append(httpx.get(f"{url}/v1/files", headers=headers, timeout=60).status_code)

    asking = [threading.Thread(target=request) for _ in range(2 * THREADS)]
    with stopped(own_postgres):
        for thread in asking:
            thread.start()
        for _ in range(3):
            assert is_ok(f"{url}/livez", 30)
            assert httpx.get(f"{url}/readyz", timeout=30).json()["checks"]["database"] == "no answer"
        assert "grpo_database_up 0.0" in httpx.get(f"{url}/metrics", timeout=30).text
        assert answers.count(200) == 0
    for thread in asking:
        thread.join()
    wait_until(lambda: is_ok(f"{url}/readyz", 30), 120)
    assert set(answers) <= {200, 503}
