"""Parquet uploads: the JSONL of their rows, whatever their name, and nothing that damaged bytes break."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.jobs.model import dataset
from service.platform import parquet_rows
from service.platform.parquet import BadParquet, parquet_lines
from service.settings import Settings
from tests.service.files.file_samples import on_sqlite, refusal, stored, upload
from tests.service.job_samples import jsonl, make_model, request, row

MAX_BYTES = 2**24


def parquet(table: Any, **options: Any) -> bytes:
    """Bytes of a file with these rows (a list of dicts) or this table."""
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(table) if isinstance(table, list) else table, sink, **options)
    return sink.getvalue()


def rows_of(content: bytes, *, max_rows: int = 1000, max_bytes: int = MAX_BYTES) -> list[Any]:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        return [json.loads(line) for line in parquet_lines(file, max_rows=max_rows, max_bytes=max_bytes)]


def column(value: Any, kind: pa.DataType) -> bytes:
    return parquet(pa.table({"answer": pa.array([value], kind)}))


@on_sqlite
def test_a_parquet_upload_is_known_by_its_bytes_and_comes_back_as_it_was(client: TestClient) -> None:
    content = parquet([row(), row("What is 3+3?", "6")])
    answer = upload(client, content, name="data.jsonl").json()
    assert (answer["bytes"], answer["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
    assert client.get(f"/v1/files/{answer['id']}/content").content == content


@on_sqlite
def test_a_name_does_not_make_a_parquet_file(client: TestClient) -> None:
    answer = upload(client, jsonl(row()), name="data.parquet")
    assert answer.status_code == 200
    assert upload(client, b"\x00" + parquet([row()]), name="data.parquet").status_code == 400


@on_sqlite
def test_a_job_on_parquet_is_the_job_on_its_jsonl(client: TestClient, settings: Settings) -> None:
    make_model(settings.home)
    rows = [row(f"What is {n}+{n}?", str(2 * n), tags=["a", None], meta={"n": n}) for n in range(20)]
    answers = []
    for content in (jsonl(*rows), parquet(rows, row_group_size=7)):
        file_id = upload(client, content).json()["id"]
        answers.append(client.post("/v1/fine_tuning/jobs/validate", json=request(file_id)).json())
    assert answers[0] == answers[1]
    assert (answers[1]["valid"], answers[1]["rows"]["training"]) == (True, 20)


@on_sqlite
def test_a_bad_row_of_parquet_is_named_by_its_number(client: TestClient, settings: Settings) -> None:
    make_model(settings.home)
    rows = [row(), {"messages": [{"role": "assistant", "content": "4"}], "answer": "4"}, {"messages": None}]
    file_id = upload(client, parquet(rows, row_group_size=1)).json()["id"]
    report = client.post("/v1/fine_tuning/jobs/validate", json=request(file_id)).json()
    params = [problem["param"] for problem in report["problems"]]
    assert params == ["training_file[2].messages", "training_file[3].messages"]


def test_rows_keep_their_order_over_row_groups_and_nulls_are_absent_fields() -> None:
    rows = [{"n": n, "more": {"a": None, "b": [1, None]}, "extra": None if n else "x"} for n in range(200)]
    found = rows_of(parquet(rows, row_group_size=33))
    assert found[0] == {"n": 0, "more": {"b": [1, None]}, "extra": "x"}
    assert found[199] == {"n": 199, "more": {"b": [1, None]}}
    assert [one["n"] for one in found] == list(range(200))


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (True, pa.bool_(), True),
        (2**63 + 1, pa.uint64(), 2**63 + 1),
        (0.1, pa.float64(), 0.1),
        (Decimal("6.50"), pa.decimal128(10, 2), 6.5),
        (Decimal("600.00"), pa.decimal128(10, 2), 600),
        (Decimal(10**30), pa.decimal128(38, 0), 10**30),
        (date(2026, 2, 3), pa.date32(), "2026-02-03"),
        (datetime(2026, 2, 3, 4, 5, 6), pa.timestamp("ns"), "2026-02-03T04:05:06"),
        (
            datetime(2026, 2, 3, 4, 5, 6, 7, UTC),
            pa.timestamp("us", "UTC"),
            "2026-02-03T04:05:06.000007+00:00",
        ),
        (b"four \xe2\x82\xac", pa.binary(), "four €"),
        ([("a", 1), ("b", None)], pa.map_(pa.string(), pa.int64()), {"a": 1}),
        ([[1], []], pa.list_(pa.large_list(pa.int8())), [[1], []]),
        ("four", pa.dictionary(pa.int32(), pa.string()), "four"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_values_become_plain_json(value: Any, kind: pa.DataType, expected: Any) -> None:
    assert rows_of(column(value, kind)) == [{"answer": expected}]


@pytest.mark.parametrize(
    ("value", "kind", "reason"),
    [
        (float("nan"), pa.float64(), "nan is not a JSON number"),
        (float("inf"), pa.float32(), "inf is not a JSON number"),
        (Decimal("0." + "1" * 30), pa.decimal128(38, 30), "more digits than a number keeps"),
        (b"\xff", pa.binary(), "not UTF-8"),
        (5, pa.duration("s"), "timedelta has no JSON form"),
        ([(1, "a")], pa.map_(pa.int64(), pa.string()), "keys must be texts"),
    ],
    ids=["nan", "infinity", "decimal", "bytes", "duration", "map"],
)
def test_values_without_a_json_form_are_refused_with_row_and_column(
    value: Any, kind: pa.DataType, reason: str
) -> None:
    with pytest.raises(BadParquet, match=f"row 1, column 'answer': .*{reason}") as refused:
        rows_of(column(value, kind))
    assert refused.value.code == "parquet_value"


@on_sqlite
@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"PAR1", "parquet_damaged"),
        (b"PAR1" + b"\xff" * 5000 + b"PAR1", "parquet_damaged"),
        (parquet([row()])[:-9], "parquet_damaged"),
        (parquet(pa.table({"a": pa.array([], pa.int64())})), "file_empty"),
        (parquet(pa.table([[1], [2]], names=["a", "a"])), "parquet_columns"),
        (column(float("nan"), pa.float64()), "parquet_value"),
        (parquet([{"text": "x" * (9 * 2**20)}]), "line_too_long"),
    ],
    ids=["magic", "noise", "cut", "empty", "columns", "nan", "long"],
)
def test_files_no_job_could_read_are_refused(
    client: TestClient, settings: Settings, content: bytes, code: str
) -> None:
    answer = upload(client, content)
    assert refusal(answer) == (400, "file", code)
    assert stored(settings) == []


@on_sqlite
def test_too_many_rows_are_refused_before_any_is_decoded(settings: Settings, api_key: str) -> None:
    limited = settings.model_copy(update={"max_rows": 10})
    content = bytearray(parquet([{"n": n} for n in range(11)]))
    content[4:40] = b"\xff" * 36  # no page could be decoded
    with TestClient(create_app(limited), headers={"authorization": f"Bearer {api_key}"}) as client:
        answer = upload(client, bytes(content))
    assert refusal(answer) == (400, "file", "too_many_rows")


def test_a_small_file_of_endless_rows_ends_at_the_limit_of_bytes() -> None:
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 50_000, pa.int32()), pa.array(["x" * 2**20]))
    content = parquet(pa.table({"prompt": words}))
    assert len(content) < 2**20
    started = time.monotonic()
    with pytest.raises(BadParquet, match="more than 16777216 bytes") as refused:
        rows_of(content, max_rows=50_000)
    assert refused.value.code == "parquet_too_large"
    assert time.monotonic() - started < 20


def test_no_damage_to_a_file_ends_in_anything_but_rows_or_a_refusal() -> None:
    content = parquet([row(f"What is {n}?", str(n), f=n / 3) for n in range(300)], row_group_size=100)
    chance = random.Random(7)
    outcomes = set()
    for _ in range(12):
        damaged = bytearray(content)
        for _ in range(chance.randint(1, 20)):
            damaged[chance.randrange(4, len(damaged) - 4)] = chance.randrange(256)
        try:
            outcomes.add(len(rows_of(bytes(damaged))))
        except BadParquet as error:
            outcomes.add(error.code)
    assert "parquet_damaged" in outcomes
    assert outcomes <= {300, "parquet_damaged", "parquet_value", "parquet_too_large", "too_many_rows"}


def test_the_position_in_the_file_does_not_move() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(parquet([row()]))
        file.seek(3)
        list(parquet_lines(file, max_rows=10, max_bytes=MAX_BYTES))
        assert file.tell() == 3


def test_reading_may_be_given_up_and_leaves_no_process_behind() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(parquet([{"n": n} for n in range(1000)]))
        for _ in range(5):  # more than may run at a time
            lines = parquet_lines(file, max_rows=1000, max_bytes=MAX_BYTES)
            assert next(lines) == b'{"n": 0}\n'
            lines.close()


def test_a_stranger_s_bytes_are_never_read_as_root() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(parquet([{"n": n} for n in range(100_000)]))  # more than fits the pipe: it still runs
        lines = parquet_lines(file, max_rows=100_000, max_bytes=MAX_BYTES)
        next(lines)
        own = Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/children").read_text().split()
        commands = {child: Path(f"/proc/{child}/cmdline").read_text() for child in own}
        (reader,) = [child for child, command in commands.items() if parquet_rows.__file__ in command]
        status = Path(f"/proc/{reader}/status").read_text()
        lines.close()
    assert "\nUid:\t0" not in status
    if os.geteuid() == 0:  # at most the capability to read what is hidden from others
        assert {int(held, 16) for held in re.findall(r"Cap(?:Eff|Bnd):\t(\w+)", status)} <= {0, 1 << 2}


@on_sqlite
def test_a_machine_that_may_not_read_parquet_says_so_as_its_own_fault(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name, **kwargs: None)
    answer = upload(client, parquet([row()]))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "parquet_unavailable")
    assert answer.json()["error"]["message"].endswith("this is root, and setpriv is not installed")


def test_a_parquet_row_may_be_as_long_as_a_line_and_pyarrow_stays_out_of_the_service() -> None:
    assert parquet_rows.MAX_LINE_BYTES == dataset.MAX_LINE_BYTES
    text = "x" * (dataset.MAX_LINE_BYTES - len('{"text": ""}'))
    assert rows_of(parquet([{"text": text}])) == [{"text": text}]
    with pytest.raises(BadParquet, match="row 1 is longer than 8388608 bytes"):
        rows_of(parquet([{"text": text + "x"}]))
    script = "import sys, service.app; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
