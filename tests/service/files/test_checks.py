"""What an upload may hold: refusals name the field and the line, and nothing stays behind."""

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.settings import Settings
from tests.service.files.file_samples import ROWS, expires_after, on_sqlite, refusal, stored, upload


@on_sqlite
@pytest.mark.parametrize(
    ("content", "code", "place"),
    [
        (b"", "file_empty", "empty"),
        (b"\n \n\r\n", "file_empty", "empty"),
        (b'{"a": 1}\n{"a": "\xff"}\n', "file_not_utf8", "line 2, byte 8"),
        (b'{"a": 1}\n{"a": "\x00"}\n', "file_not_utf8", "line 2"),
        (b'\xef\xbb\xbf{"a": 1}\n', "file_has_bom", "line 1"),
        (b"PAR1\x15\x04", "unsupported_file_format", "converted by the CLI: grpo files upload data.parquet."),
        (b'{"a": 1}\n' + b"x" * (8 * 2**20 + 1), "line_too_long", "line 2"),
    ],
    ids=["empty", "blank", "latin-1", "nul", "bom", "parquet", "long-line"],
)
def test_bytes_no_job_could_read_are_refused(
    client: TestClient, settings: Settings, content: bytes, code: str, place: str
) -> None:
    answer = upload(client, content)
    assert refusal(answer) == (400, "file", code)
    assert place in answer.json()["error"]["message"]
    assert stored(settings) == []
    assert client.get("/v1/files").json()["data"] == []


@on_sqlite
def test_a_line_of_exactly_8_mib_is_allowed(client: TestClient) -> None:
    assert upload(client, b"x" * (8 * 2**20) + b"\r\n").status_code == 200


@on_sqlite
def test_more_rows_than_allowed_are_refused(client: TestClient) -> None:
    answer = upload(client, b"{}\n" * 100_000)
    assert refusal(answer) == (400, "file", "too_many_rows")
    assert "50000 rows" in answer.json()["error"]["message"]


@on_sqlite
def test_lines_without_rows_are_not_read_for_ever(client: TestClient) -> None:
    assert upload(client, b"{}\n" + b"\n" * 90_000).status_code == 200
    answer = upload(client, b"{}\n" + b"\n" * 100_000)
    assert refusal(answer) == (400, "file", "too_many_rows")


@on_sqlite
def test_exactly_as_many_rows_as_allowed_are_taken(client: TestClient) -> None:
    assert upload(client, b"{}\n" * 50_000).status_code == 200


@pytest.mark.parametrize(("num_bytes", "param"), [(1001, "file"), (200_000, None)])
@on_sqlite
def test_a_file_over_the_limit_is_a_413(
    settings: Settings, api_key: str, num_bytes: int, param: str | None
) -> None:
    app = create_app(settings.model_copy(update={"max_upload_bytes": 1000}))
    with TestClient(app, headers={"authorization": f"Bearer {api_key}"}) as client:
        assert upload(client, b"x" * 1000).status_code == 200
        assert refusal(upload(client, b"x" * num_bytes)) == (413, param, "payload_too_large")
        assert len(stored(settings)) == 1


@on_sqlite
def test_only_the_purpose_fine_tune_is_accepted(client: TestClient) -> None:
    answer = upload(client, purpose="evals")
    assert refusal(answer) == (400, "purpose", "invalid_value")
    assert "'fine-tune'" in answer.json()["error"]["message"]


@on_sqlite
def test_a_form_without_file_names_the_field(client: TestClient) -> None:
    answer = client.post("/v1/files", data={"purpose": "fine-tune"})
    assert refusal(answer) == (400, "file", "missing_field")


@on_sqlite
def test_a_form_without_purpose_names_the_field(client: TestClient) -> None:
    answer = client.post("/v1/files", files={"file": ("a.jsonl", ROWS)})
    assert refusal(answer) == (400, "purpose", "missing_field")


@on_sqlite
def test_an_unknown_form_field_is_refused(client: TestClient) -> None:
    assert refusal(upload(client, porpoise="x")) == (400, "porpoise", "unknown_field")


@on_sqlite
def test_an_expiry_of_a_minute_is_refused(client: TestClient) -> None:
    assert refusal(upload(client, **expires_after("60"))) == (400, "expires_after.seconds", "invalid_value")
