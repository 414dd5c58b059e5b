"""When a key was last used: rounded, seldom written, and never at a request's cost."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from service.platform.db import Database, connect
from service.platform.tables.core import ApiKey
from service.web.auth import CURRENT_KEY, create_key
from service.web.key_use import INTERVAL_SECONDS, KeyUse
from tests.conftest import settings_for


@pytest.fixture
def key_use(database: Database) -> Iterator[KeyUse]:
    """Of another process, which has written nothing yet."""
    made = KeyUse(database)
    yield made
    made.close()


@pytest.fixture
def key_id(database: Database) -> str:
    with database.transaction() as session:
        return create_key(session, "tenant-a").split("_")[1]


def last_used(database: Database, key_id: str) -> float | None:
    with database.reading() as session:
        return session.get_one(ApiKey, key_id).last_used_at


def use(key_use: KeyUse, key_id: str) -> bool:
    """Whether the use was due; then it has been written."""
    written = key_use.note(key_id)
    if written is not None:
        written.result(30)
    return written is not None


def test_a_request_is_recorded_as_the_minute_of_its_key_s_use(app: FastAPI, client: TestClient) -> None:
    before = time.time()
    assert client.get(CURRENT_KEY).status_code == 200
    use(app.state.key_use, "written-after-the-others")
    last_used_at = client.get(CURRENT_KEY).json()["last_used_at"]
    assert last_used_at % 60 == 0
    assert before - 60 <= last_used_at <= time.time()


def test_a_refused_key_is_not_recorded(app: FastAPI, anonymous: TestClient, database: Database) -> None:
    with database.transaction() as session:
        key = create_key(session, "tenant-a")
    wrong = {"authorization": f"Bearer {key[:-1]}{'a' if key[-1] != 'a' else 'b'}"}
    assert anonymous.get(CURRENT_KEY, headers=wrong).status_code == 401
    use(app.state.key_use, "written-after-the-others")
    assert last_used(database, key.split("_")[1]) is None


def test_a_process_writes_a_key_s_use_once_in_five_minutes(key_use: KeyUse, key_id: str) -> None:
    assert [use(key_use, key_id) for _ in range(3)] == [True, False, False]


@pytest.mark.parametrize(
    ("age", "is_written"), [(INTERVAL_SECONDS - 60, False), (INTERVAL_SECONDS + 130, True)]
)
def test_a_use_that_another_process_wrote_recently_is_not_written_again(
    database: Database, key_use: KeyUse, key_id: str, age: float, is_written: bool
) -> None:
    earlier = time.time() - age
    with database.transaction() as session:
        session.get_one(ApiKey, key_id).last_used_at = earlier
    assert use(key_use, key_id)
    assert (last_used(database, key_id) != earlier) is is_written


def test_a_use_that_cannot_be_written_is_lost_without_an_error(tmp_path: Path) -> None:
    without_tables = connect(settings_for(tmp_path))
    key_use = KeyUse(without_tables)
    assert use(key_use, "a")
    key_use.close()
    without_tables.engine.dispose()
