"""A stream lives no longer than the key that opened it."""

from collections.abc import Callable, Sequence

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy.orm import Session

from service.platform import feed
from service.platform.db import Database
from service.platform.tables.core import ApiKey
from service.web.auth import create_key, revoke_key, usable_keys
from tests.service.jobs.progress.test_stream import opened, record, step
from tests.support.servers import wait_until


def expire(database: Database, public_id: str) -> None:
    with database.transaction() as session:
        key = session.get(ApiKey, public_id)
        assert key is not None
        key.expires_at = 1.0


def revoke(database: Database, public_id: str) -> None:
    with database.transaction() as session:
        assert revoke_key(session, public_id)


@pytest.mark.parametrize("lose", [revoke, expire])
def test_a_key_that_is_lost_ends_its_streams_and_no_others(
    http: httpx.Client,
    database: Database,
    api_key: str,
    job_id: str,
    lose: Callable[[Database, str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed, "KEY_SECONDS", 0.1)
    with database.transaction() as session:
        kept = {"authorization": f"Bearer {create_key(session, 'tenant-a')}"}
    record(database, job_id, step(1))
    with opened(http, job_id) as lost, opened(http, job_id, headers=kept) as open_:
        assert [next(lost).id, next(open_).id] == [1, 1]
        lose(database, api_key.split("_")[1])
        assert list(lost) == []
        record(database, job_id, step(2))
        assert next(open_).id == 2
    assert http.get(f"/{job_id}/stream").status_code == 401


def test_all_keys_of_the_streams_are_checked_in_one_query(
    app: FastAPI, http: httpx.Client, database: Database, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[list[str]] = []

    def counted(session: Session, public_ids: Sequence[str]) -> set[str]:
        checked.append(list(public_ids))
        return usable_keys(session, public_ids)

    monkeypatch.setattr(feed, "KEY_SECONDS", 0.0)
    monkeypatch.setattr(app.state.job_feed, "_usable_keys", counted)
    with database.transaction() as session:
        other = {"authorization": f"Bearer {create_key(session, 'tenant-a')}"}
    record(database, job_id, step(1))
    with (
        opened(http, job_id) as one,
        opened(http, job_id) as two,
        opened(http, job_id, headers=other) as third,
    ):
        assert [next(one).id, next(two).id, next(third).id] == [1, 1, 1]
        checked.clear()
        wait_until(lambda: len(checked) >= 2, what="the keys are checked")
    assert [len(ids) for ids in checked[:2]] == [2, 2]
