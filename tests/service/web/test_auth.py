"""Keys: shown once, stored as a digest, and closed at once when they end."""

import hashlib
import re

import httpx
import pytest
from fastapi.testclient import TestClient
from openai import AuthenticationError, OpenAI
from sqlalchemy import select

from service.platform.clock import db_now
from service.platform.db import Database
from service.platform.errors import Unauthorized
from service.platform.tables.core import ApiKey
from service.web.auth import KEY_PATTERN, authenticate, create_key, list_keys, revoke_key
from tests.conftest import on_sqlite

pytestmark = on_sqlite  # nothing here depends on the database


def public_id(key: str) -> str:
    return key.split("_")[1]


def status_of(client: TestClient, key: str, method: str = "GET") -> tuple[int, str | None]:
    path = "/v1/files" if method == "GET" else "/v1/files/file-x"
    answer = client.request(method, path, headers={"authorization": f"Bearer {key}"})
    return answer.status_code, answer.json().get("error", {}).get("code")


def test_only_a_digest_of_the_secret_is_stored(database: Database, api_key: str) -> None:
    secret = api_key.split("_")[2]
    with database.reading() as session:
        row = session.scalars(select(ApiKey)).one()
        stored = [str(getattr(row, column.name)) for column in ApiKey.__table__.columns]
    assert row.secret_sha256 == hashlib.sha256(secret.encode()).hexdigest()
    assert not any(secret in text for text in stored)


def test_a_secret_has_256_bits() -> None:
    assert 62 ** int(re.findall(r"\{(\d+)\}", KEY_PATTERN.pattern)[1]) >= 2**256


def test_a_key_gives_its_tenant_and_scopes(database: Database, api_key: str) -> None:
    principal = authenticate(database, f"bearer {api_key}")
    assert (principal.tenant, principal.key_id) == ("tenant-a", public_id(api_key))
    assert principal.scopes == {"read", "write"}


def test_two_keys_of_a_tenant_differ(database: Database) -> None:
    with database.transaction() as session:
        assert create_key(session, "a") != create_key(session, "a")


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic abc"])
def test_a_request_without_key_is_a_401(anonymous: TestClient, header: str | None) -> None:
    answer = anonymous.get("/v1/files", headers={} if header is None else {"authorization": header})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"] == {
        "message": "No API key: send 'Authorization: Bearer <key>'.",
        "type": "authentication_error",
        "param": None,
        "code": "missing_api_key",
    }


def test_a_wrong_secret_is_refused(anonymous: TestClient, api_key: str) -> None:
    last = "a" if api_key[-1] != "a" else "b"
    assert status_of(anonymous, api_key[:-1] + last) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    "key", ["x", "grpo__", "grpo_0123456789abcdef_short", "grpo_\x7f", "sk-" + "a" * 5000]
)
def test_an_unknown_key_is_refused(anonymous: TestClient, key: str) -> None:
    assert status_of(anonymous, key) == (401, "invalid_api_key")


@pytest.mark.parametrize("key", ["grpo_é_😀".encode(), b"\xff\xfe", b"x" * 20_000])
def test_a_key_of_odd_bytes_is_refused(server_url: str, key: bytes) -> None:
    answer = httpx.get(f"{server_url}/v1/files", headers={b"authorization": b"Bearer " + key}, timeout=60)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize("name", ["api_key", "key", "x"])
def test_a_key_in_a_url_is_refused_with_any_header(
    anonymous: TestClient, client: TestClient, api_key: str, name: str
) -> None:
    """URLs end up in logs of servers and proxies, so such a key is not secret any more."""
    answers = [asked.get("/v1/files", params={name: api_key}) for asked in (anonymous, client)]
    codes = [(answer.status_code, answer.json()["error"]["code"]) for answer in answers]
    assert codes == [(401, "api_key_in_url")] * 2


def test_an_unknown_public_id_is_refused(anonymous: TestClient, api_key: str) -> None:
    unknown = api_key.replace(public_id(api_key), "0" * 16)
    assert status_of(anonymous, unknown) == (401, "invalid_api_key")


def test_the_secret_of_another_key_is_refused(
    anonymous: TestClient, api_key: str, other_api_key: str
) -> None:
    mixed = f"grpo_{public_id(api_key)}_{other_api_key.split('_')[2]}"
    assert status_of(anonymous, mixed) == (401, "invalid_api_key")


def test_a_revoked_key_is_refused(anonymous: TestClient, database: Database, api_key: str) -> None:
    assert status_of(anonymous, api_key) == (200, None)
    with database.transaction() as session:
        assert revoke_key(session, public_id(api_key)) is True
    assert status_of(anonymous, api_key) == (401, "invalid_api_key")


def test_revoking_an_unknown_or_revoked_key_returns_false(database: Database, api_key: str) -> None:
    with database.transaction() as session:
        answers = [revoke_key(session, name) for name in (public_id(api_key), public_id(api_key), "nobody")]
    assert answers == [True, False, False]


def test_a_key_is_accepted_until_it_expires(anonymous: TestClient, database: Database) -> None:
    with database.transaction() as session:
        now = session.scalar(select(db_now()))
        assert now is not None
        expired = create_key(session, "a", expires_at=now - 1)
        valid = create_key(session, "a", expires_at=now + 60)
    assert status_of(anonymous, expired) == (401, "expired_api_key")
    assert status_of(anonymous, valid) == (200, None)


def test_a_key_without_write_scope_changes_nothing(anonymous: TestClient, database: Database) -> None:
    with database.transaction() as session:
        key = create_key(session, "a", scopes=["read"])
    assert status_of(anonymous, key) == (200, None)
    assert status_of(anonymous, key, "DELETE") == (403, "insufficient_scope")


def test_a_key_without_read_scope_reads_nothing(anonymous: TestClient, database: Database) -> None:
    with database.transaction() as session:
        key = create_key(session, "a", scopes=["write"])
    assert status_of(anonymous, key) == (403, "insufficient_scope")


def test_an_upload_without_key_is_refused_before_it_is_read(anonymous: TestClient) -> None:
    answer = anonymous.post("/v1/files", content=b"no form", headers={"content-type": "multipart/form-data"})
    assert answer.status_code == 401


def test_the_keys_of_all_tenants_are_listed(database: Database) -> None:
    with database.transaction() as session:
        made = {public_id(create_key(session, tenant)): tenant for tenant in ("a", "b", "a")}
    with database.reading() as session:
        assert {row.public_id: row.tenant for row in list_keys(session)} == made


@pytest.mark.parametrize("tenant", ["", "x" * 65, "a\nb", "[/b]", "a b", "-a", ".a", "a\n", "é", "\x1b[31m"])
def test_a_tenant_s_name_is_letters_digits_and_few_signs(database: Database, tenant: str) -> None:
    with database.transaction() as session, pytest.raises(ValueError, match="tenant"):
        create_key(session, tenant)


@pytest.mark.parametrize("name", ["x" * 129, "\x1b[31m"])
def test_a_key_s_name_is_short_and_printable(database: Database, name: str) -> None:
    with database.transaction() as session, pytest.raises(ValueError, match="name"):
        create_key(session, "a", name=name)


def test_an_unknown_scope_is_refused(database: Database) -> None:
    with database.transaction() as session, pytest.raises(ValueError, match="unknown scopes: root"):
        create_key(session, "a", scopes=["root"])


def test_a_key_that_is_not_valid_raises(database: Database) -> None:
    with pytest.raises(Unauthorized) as caught:
        authenticate(database, "Bearer grpo_x_y")
    assert caught.value.code == "invalid_api_key"


def test_openais_client_understands_a_refused_key(openai_client: OpenAI) -> None:
    with pytest.raises(AuthenticationError) as caught:
        openai_client.with_options(api_key="grpo_x_y").files.list()
    assert caught.value.code == "invalid_api_key"
