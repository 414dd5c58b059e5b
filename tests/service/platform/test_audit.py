"""The audit trail: it only grows, it names the request, and its operator can read it.

That every change leaves a row in it is the matrix's (`test_tenancy_matrix.py`).
"""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError

from service.platform import audit
from service.platform.db import Database
from service.platform.tables.core import AuditEntry
from service.web.auth import create_key, revoke_key
from tests.service.files.file_samples import expire, uploaded


@pytest.mark.parametrize("statement", ["UPDATE audit SET tenant = 'x'", "DELETE FROM audit"])
def test_the_database_refuses_to_rewrite_history(database: Database, api_key: str, statement: str) -> None:
    with pytest.raises(DBAPIError, match="never changed or removed"), database.transaction() as session:
        session.execute(text(statement))
    with database.reading() as session:
        assert [row.action for row in session.scalars(select(AuditEntry))] == ["key.create"]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_the_table_cannot_be_truncated(database: Database) -> None:
    with pytest.raises(DBAPIError, match="never changed or removed"), database.transaction() as session:
        session.execute(text("TRUNCATE audit"))


def test_creations_and_revocations_of_keys_are_recorded(database: Database) -> None:
    with database.transaction() as session:
        public_id = create_key(session, "a").split("_")[1]
        create_key(session, "b")
        revoke_key(session, public_id)
        found = audit.newest(session, tenant="a", limit=10)
    assert [(row.key_id, row.action, row.object_id) for row in found] == [
        ("cli", "key.revoke", public_id),
        ("cli", "key.create", public_id),
    ]


def test_the_newest_changes_come_first_up_to_the_limit(database: Database) -> None:
    with database.transaction() as session:
        made = [create_key(session, "a").split("_")[1] for _ in range(3)]
        found = [row.object_id for row in audit.newest(session, tenant=None, limit=2)]
    assert found == made[:0:-1]


def test_a_change_is_found_by_the_request_id_that_its_client_saw(
    client: TestClient, database: Database
) -> None:
    file_id = uploaded(client)
    answer = client.delete(f"/v1/files/{file_id}")
    with database.reading() as session:
        query = select(AuditEntry).where(AuditEntry.request_id == answer.headers["x-request-id"])
        assert [(row.action, row.object_id) for row in session.scalars(query)] == [("file.delete", file_id)]


def test_the_removal_of_expired_content_is_recorded(client: TestClient, database: Database) -> None:
    file_id = uploaded(client)
    expire(database, file_id)
    uploaded(client)
    with database.reading() as session:
        found = session.scalars(select(AuditEntry.action).where(AuditEntry.object_id == file_id)).all()
    assert list(found) == ["file.create", "file.expire"]
