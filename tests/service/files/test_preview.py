"""Previews and new names of datasets."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from service.files import preview as preview_module
from service.jobs.model.states import JobState
from service.platform.db import Database
from service.platform.storage import open_storage
from service.platform.tables.core import File
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.files.file_samples import refusal, uploaded
from tests.service.job_samples import add_artifact, add_job, chat, jsonl, make_model, row, store_file


def preview(client: TestClient, file_id: str, **query: Any) -> Any:
    answer = client.get(f"/v1/files/{file_id}/preview", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_preview_has_the_first_rows_their_columns_and_the_number_of_all(client: TestClient) -> None:
    rows = [row(f"{n}?", str(n), **({"level": n} if n else {})) for n in range(30)]
    found = preview(client, uploaded(client, jsonl(*rows) + b"\n \n"), limit=2)
    assert found == {
        "object": "file.preview",
        "rows": rows[:2],
        "num_rows": 30,
        "columns": ["messages", "answer", "level"],
        "tokens": None,
    }


@on_sqlite
def test_lengths_are_counted_with_the_models_tokenizer_and_template(
    client: TestClient, settings: Settings
) -> None:
    make_model(settings.home)
    questions = [row("word " * n) for n in range(1, 101)]
    file_id = uploaded(client, jsonl(*questions, {"other": 1}))
    # the template adds "<user>" and "<assistant>"
    expected = {"rows": 100, "min": 3, "median": 52, "p95": 97, "max": 102}
    assert preview(client, file_id, limit=1, model="tiny")["tokens"] == expected
    answered = uploaded(client, jsonl(chat("a b", "c"), {"prompt": "a b c", "completion": " d"}))
    assert preview(client, answered, model="tiny")["tokens"] | {"p95": 0} == {
        "rows": 2, "min": 4, "median": 4, "p95": 0, "max": 5
    }  # fmt: skip
    assert preview(client, uploaded(client, b"{}\n"), model="tiny")["tokens"] is None


@on_sqlite
def test_lengths_of_a_long_file_are_counted_on_rows_spread_over_it(
    client: TestClient, settings: Settings
) -> None:
    make_model(settings.home)
    rows = jsonl(*({"prompt": "a"} for _ in range(2500)), *({"prompt": "a b c"} for _ in range(2500)))
    found = preview(client, uploaded(client, rows), model="tiny")["tokens"]
    assert found == {"rows": 1667, "min": 1, "median": 1, "p95": 3, "max": 3}


@on_sqlite
@pytest.mark.parametrize("content", [["a"], [{"text": 1}, 2], {"a": 1}, 5, None])
def test_rows_that_no_template_expects_are_not_counted(
    client: TestClient, settings: Settings, content: Any
) -> None:
    make_model(settings.home)
    odd = {"messages": [{"role": "user", "content": content}], "tools": "none"}
    found = preview(client, uploaded(client, jsonl(odd, {"prompt": "a b"})), model="tiny")
    assert found["rows"][0] == odd
    assert found["tokens"]["min"] <= 2


@on_sqlite
def test_rows_of_any_size_are_counted(
    client: TestClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preview_module, "BATCH_BYTES", 30)
    make_model(settings.home)
    rows = jsonl(*({"prompt": "a " * n} for n in (1, 30, 2, 3)))
    found = preview(client, uploaded(client, rows), model="tiny")["tokens"]
    assert found == {"rows": 4, "min": 1, "median": 2, "p95": 30, "max": 30}


@on_sqlite
def test_long_rows_are_shown_up_to_a_megabyte(client: TestClient) -> None:
    rows = [{"prompt": "x" * 2**19, "n": n} for n in range(5)]
    found = preview(client, uploaded(client, jsonl(*rows)))
    assert [row["n"] for row in found["rows"]] == [0]
    assert found["num_rows"] == 5


@on_sqlite
def test_a_file_of_an_earlier_version_is_counted(client: TestClient, database: Database) -> None:
    file_id = uploaded(client, b'{"a": 1}\n{"a": 2}\n\n')
    with database.transaction() as session:
        session.execute(update(File).values(num_rows=None))
    assert preview(client, file_id)["num_rows"] == 2


@on_sqlite
@pytest.mark.parametrize(
    ("query", "status", "param", "code"),
    [
        ({"model": "none"}, 400, "model", "model_not_found"),
        ({"limit": 0}, 400, "limit", "invalid_value"),
        ({"limit": 101}, 400, "limit", "invalid_value"),
    ],
)
def test_wrong_queries_name_their_field(
    client: TestClient, query: dict[str, Any], status: int, param: str, code: str
) -> None:
    answer = client.get(f"/v1/files/{uploaded(client)}/preview", params=query)
    assert refusal(answer) == (status, param, code)


@on_sqlite
def test_a_file_with_a_broken_line_has_no_preview(
    client: TestClient, settings: Settings, database: Database
) -> None:
    file_id = store_file(settings, database, b'{"a": 1}\n{"a": \n')
    answer = client.get(f"/v1/files/{file_id}/preview")
    assert refusal(answer) == (400, "file_id", "invalid_jsonl")
    assert "line 2 is not JSON" in answer.json()["error"]["message"]


def test_a_file_whose_content_was_lost_has_no_preview(client: TestClient, settings: Settings) -> None:
    file_id = uploaded(client, jsonl(row()))
    open_storage(settings.storage_location).delete(f"files/{file_id}")
    answer = client.get(f"/v1/files/{file_id}/preview")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "content_missing")


def test_a_new_name_changes_nothing_else(client: TestClient) -> None:
    file_id = uploaded(client)
    before = client.get(f"/v1/files/{file_id}").json()
    answer = client.patch(f"/v1/files/{file_id}", json={"filename": "gsm8k, short.jsonl"})
    assert answer.json() == {**before, "filename": "gsm8k, short.jsonl"}
    assert client.get(f"/v1/files/{file_id}").json() == answer.json()


@on_sqlite
@pytest.mark.parametrize("name", ["", "a\nb", "x" * 256, 7, None])
def test_a_name_that_no_upload_may_have_is_refused(client: TestClient, name: Any) -> None:
    file_id = uploaded(client)
    answer = client.patch(f"/v1/files/{file_id}", json={"filename": name})
    assert refusal(answer) == (400, "filename", "invalid_value")


@on_sqlite
def test_a_job_s_result_has_no_preview_and_keeps_its_name(
    client: TestClient, settings: Settings, database: Database
) -> None:
    job_id = add_job(database, JobState.SUCCEEDED)
    file_id = add_artifact(settings, database, job_id, "metrics", b"step\n1\n")
    for answer in (
        client.get(f"/v1/files/{file_id}/preview"),
        client.patch(f"/v1/files/{file_id}", json={"filename": "x"}),
    ):
        assert refusal(answer) == (400, "file_id", "file_is_result")


@on_sqlite
def test_a_foreign_file_is_neither_shown_nor_renamed(client: TestClient, other_client: TestClient) -> None:
    file_id = uploaded(client)
    assert other_client.get(f"/v1/files/{file_id}/preview").status_code == 404
    assert other_client.patch(f"/v1/files/{file_id}", json={"filename": "x"}).status_code == 404
