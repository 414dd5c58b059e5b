"""What an upload may hold: refusals name the field and the line, and nothing stays behind."""

import gzip
import re
import tracemalloc
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.files.contents import check_dataset
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.files.file_samples import ROWS, expires_after, refusal, stored, upload


@on_sqlite
@pytest.mark.parametrize(
    ("content", "code", "place"),
    [
        (b"", "file_empty", "empty"),
        (b"\n \n\r\n", "file_empty", "all its lines are blank"),
        (b'{"a": 1}\n{"a": "\xff"}\n', "file_not_utf8", "line 2, byte 8"),
        (b'{"a": 1}\n{"a": "\x00"}\n', "file_not_utf8", "line 2"),
        (b'\xef\xbb\xbf{"a": 1}\n', "file_has_bom", "line 1"),
        (b"PAR1\x15\x04", "unsupported_file_format", "converted by the CLI: grpo files upload data.parquet."),
        (b'{"a": 1}\n' + b"x" * (8 * 2**20 + 1), "line_too_long", "line 2"),
        (
            b'{"a": 1}\n{"a": 1,}\n',
            "invalid_jsonl",
            "line 2 is not JSON: .* at character [89]; each line",
        ),
        (b'{"a": 1}\n \n\n{"a": 1}\n', "invalid_jsonl", "line 2 is blank: only lines at the end"),
        (b'{"a": 1}\n[1]\n', "invalid_jsonl", "line 2 is not a JSON object"),
        (b'{\n  "a": 1\n}\n', "invalid_jsonl", "line 1 is not JSON: .*; each line must be one JSON object"),
        (b'{"a": NaN}\n', "invalid_jsonl", "line 1 is not JSON: NaN is not a JSON number"),
        (b'{"a": 1}' * 2, "invalid_jsonl", "line 1 is not JSON: Extra data at character 9"),
        (b"hello\n", "invalid_jsonl", "line 1 is not JSON"),
        (b'[{"a": 1},\n{"a": 2}]\n', "unsupported_file_format", "JSON list, not JSONL; .*upload data.json"),
        (b"question,answer\n2+2?,4\n", "unsupported_file_format", "line 1 .* looks like CSV.*data.csv"),
        (b'"question";"answer"\n', "unsupported_file_format", "line 1 .* looks like CSV"),
        (
            b'{"a": ' + b"9" * 5000 + b"}\n",
            "invalid_jsonl",
            "line 1 is not JSON: a number is too large; each",
        ),
        (
            b'{"a": 1}\n{"a": "b',
            "invalid_jsonl",
            "line 2 is not JSON: Unterminated string starting at character 7;",
        ),
        (gzip.compress(b'{"a": 1}\n'), "unsupported_file_format", "gzip archive. Unpack it."),
        (
            b"PK\x03\x04\x14",
            "unsupported_file_format",
            "ZIP archive or an Excel workbook. Unpack it.*as CSV.",
        ),
        ('{"a": 1}\n'.encode("utf-16"), "file_not_utf8", "UTF-16. Save it as UTF-8."),
    ],
    ids=[
        *("empty", "blank", "latin-1", "nul", "bom", "parquet", "long-line", "comma", "gap", "list-row"),
        *("indented", "nan", "joined", "text", "json-list", "csv", "semicolons"),
        *("huge-integer", "cut-off", "gzip", "zip", "utf-16"),
    ],
)
def test_bytes_no_job_could_read_are_refused(
    client: TestClient, settings: Settings, content: bytes, code: str, place: str
) -> None:
    answer = upload(client, content)
    assert refusal(answer) == (400, "file", code)
    assert re.search(place, answer.json()["error"]["message"])
    assert stored(settings) == []
    assert client.get("/v1/files").json()["data"] == []


@on_sqlite
def test_a_line_of_exactly_8_mib_is_allowed(client: TestClient) -> None:
    assert upload(client, b'{"a": "' + b"x" * (8 * 2**20 - 9) + b'"}\r\n').status_code == 200


@on_sqlite
def test_more_rows_than_allowed_are_refused(client: TestClient) -> None:
    answer = upload(client, b"{}\n" * 100_000)
    assert refusal(answer) == (400, "file", "too_many_rows")
    assert "50000 rows" in answer.json()["error"]["message"]


@on_sqlite
@pytest.mark.parametrize(
    ("rows", "code", "reason"),
    [
        (b"", "file_empty", "file: its first 100,001 lines are blank."),
        (
            b"{}\n{}\n",
            "invalid_jsonl",
            "file: at least 99,999 blank lines follow its last row, line 2; remove them.",
        ),
    ],
    ids=["no-rows", "two-rows"],
)
def test_lines_without_rows_are_not_read_for_ever(
    client: TestClient, rows: bytes, code: str, reason: str
) -> None:
    answer = upload(client, rows + b"\n" * 3_000_000)
    assert refusal(answer) == (400, "file", code)
    assert answer.json()["error"]["message"] == reason


@on_sqlite
def test_as_many_blank_lines_as_rows_allowed_may_follow_the_last_row(client: TestClient) -> None:
    assert upload(client, b"{}\n" + b"\n" * 90_000).status_code == 200


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
        assert upload(client, b'{"a": "%s"}' % (b"x" * 991)).status_code == 200
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


def test_a_large_file_is_checked_in_the_memory_of_a_few_lines(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl"
    path.write_bytes(b'{"prompt": "%s"}\n' % (b"x" * 2000) * 20_000)
    with path.open("rb") as file:
        tracemalloc.start()
        found = check_dataset(file, max_rows=50_000)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert (found.num_rows, found.num_bytes) == (20_000, path.stat().st_size)
    assert peak_bytes < 2**20
