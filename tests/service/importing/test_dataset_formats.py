"""Datasets in other formats become JSONL on the user's machine, value by value, or are refused by name."""

import gzip
import json
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.importing.dataset_formats import Unreadable, as_jsonl


def parquet(path: Path, rows: list[dict[str, Any]] | pa.Table, **options: Any) -> str:
    pq.write_table(pa.Table.from_pylist(rows) if isinstance(rows, list) else rows, path, **options)
    return str(path)


def column(folder: Path, value: Any, kind: pa.DataType) -> str:
    return parquet(folder / "rows.parquet", pa.table({"answer": pa.array([value], kind)}))


def written(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def rows_of(source: str, **options: Any) -> list[Any]:
    with as_jsonl(source, **options) as path:
        assert path.suffix == ".jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_jsonl_file_is_used_as_it_is_whatever_its_name(tmp_path: Path) -> None:
    for name in ("rows.jsonl", "rows.json", "rows.txt"):
        source = written(tmp_path / name, '{"b": 1.50,  "a": null}\n')
        with as_jsonl(source) as path:
            assert path == Path(source)


def test_parquet_rows_keep_their_order_and_lose_only_their_nulls(tmp_path: Path) -> None:
    rows = [{"n": n, "more": {"a": None, "b": [1, None]}, "extra": None if n else "x"} for n in range(200)]
    found = rows_of(parquet(tmp_path / "a.parquet", rows, row_group_size=33))
    assert found[0] == {"n": 0, "more": {"b": [1, None]}, "extra": "x"}
    assert found[199] == {"n": 199, "more": {"b": [1, None]}}
    assert [row["n"] for row in found] == list(range(200))


def test_the_temporary_file_is_named_for_the_source_and_removed(tmp_path: Path) -> None:
    with as_jsonl(parquet(tmp_path / "train.parquet", [{"prompt": "2+2?"}])) as path:
        assert path.name == "train.jsonl"
    assert not path.exists()


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
        ([[1], []], pa.list_(pa.large_list(pa.int8())), [[1], []]),
        ("four", pa.dictionary(pa.int32(), pa.string()), "four"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_values_become_plain_json(tmp_path: Path, value: Any, kind: pa.DataType, expected: Any) -> None:
    assert rows_of(column(tmp_path, value, kind)) == [{"answer": expected}]


@pytest.mark.parametrize(
    ("value", "kind", "reason"),
    [
        (float("nan"), pa.float64(), "NaN or infinite"),
        (float("inf"), pa.float32(), "NaN or infinite"),
        (Decimal("0." + "1" * 30), pa.decimal128(38, 30), "the Decimal 0.1+ has no JSON form"),
        (b"\xff", pa.binary(), "not UTF-8"),
        (5, pa.duration("s"), "the timedelta 0:00:05 has no JSON form"),
    ],
    ids=["nan", "infinity", "decimal", "bytes", "duration"],
)
def test_a_value_without_a_json_form_is_refused_with_row_and_column(
    tmp_path: Path, value: Any, kind: pa.DataType, reason: str
) -> None:
    with pytest.raises(Unreadable, match=f"row 1, column 'answer': .*{reason}"):
        rows_of(column(tmp_path, value, kind))


def test_a_json_list_keeps_its_rows_exactly(tmp_path: Path) -> None:
    rows = [{"prompt": "When?", "answer": "2024-01-02", "more": {"a": None}}, {"prompt": "2+2?", "answer": 4}]
    assert rows_of(written(tmp_path / "rows.json", json.dumps(rows, indent=2))) == rows


def test_csv_cells_are_texts_exactly_as_they_are_written(tmp_path: Path) -> None:
    text = '\ufeffprompt,answer,note\n"Say ""7"",\nplease",007,NA\nx,1,\n'
    assert rows_of(written(tmp_path / "rows.csv", text)) == [
        {"prompt": 'Say "7",\nplease', "answer": "007", "note": "NA"},
        {"prompt": "x", "answer": "1", "note": ""},
    ]


def test_a_file_with_columns_and_another_name_is_refused_with_what_to_do(tmp_path: Path) -> None:
    source = written(tmp_path / "rows.txt", "question,answer\n2+2?,4\n")
    with pytest.raises(Unreadable, match=r"rows.txt, line 1 is not JSON: .*: each .*\.csv or \.tsv"):
        rows_of(source, columns={"question": "prompt"})


def test_a_broken_line_of_jsonl_is_refused_by_its_number(tmp_path: Path) -> None:
    source = written(tmp_path / "rows.jsonl", '{"a": 1}\n{"a": 1\n')
    with pytest.raises(
        Unreadable, match=r"rows.jsonl, line 2 is not JSON: [^;]*: each line must be one JSON object$"
    ):
        rows_of(source, columns={"a": "prompt"})


@pytest.mark.parametrize("text", ['\ufeff{"a": "2+2?"}\n', '\ufeff[{"a": "2+2?"}]'], ids=["JSONL", "list"])
def test_a_byte_order_mark_is_left_out(tmp_path: Path, text: str) -> None:
    assert rows_of(written(tmp_path / "rows.json", text), columns={"a": "prompt"}, plain=True) == [
        {"prompt": "2+2?"}
    ]


def test_a_file_with_tabs_between_its_cells_is_read(tmp_path: Path) -> None:
    text = 'prompt\tanswer\n"Say ""7"", please"\t007\n'
    assert rows_of(written(tmp_path / "rows.tsv", text)) == [{"prompt": 'Say "7", please', "answer": "007"}]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.parquet", b"PAR1" + b"\xff" * 100, "a.parquet cannot be loaded: .*[Pp]arquet"),
        ("a.json", b'[{"a": 1}, 2]', "a.json, row 2 is not a JSON object"),
        ("a.json", b'[{"a": 1},', "a.json is not JSON: .*line 1"),
        ("a.json", b'[{"a": NaN}]', "row 1, column 'a': .*NaN"),
        ("a.json", b'[{"a": 1, "a": 2}]', "a.json is not JSON: the key 'a' appears twice"),
        ("a.json", b'[{"a": "\\ud83d"}]', "row 1, column 'a' contains half of a surrogate pair"),
        ("a.json", b'[{"\\ud83d": 1}]', "row 1, column .* contains half of a surrogate pair"),
        ("a.csv", b"a,b\n1,2\n1,\x00\n", "row 2, column 'b' contains a NUL character"),
        ("a.json", b'[{"a": %s}]' % (b"[" * 64 + b"]" * 64), "row 1, column 'a' is nested deeper than 64"),
        ("a.json", b'[{"a": 1e999}]', "row 1, column 'a': .*infinite"),
        ("a.json", b"[" * 10**5, "a.json is nested too deeply"),
        ("a.csv", b"a,b,b\n1,2,3\n", "a.csv, line 1 has two columns named 'b'"),
        ("a.csv", b"a,b\n1,2\n3\n", "a.csv, row 2 does not have 2 cells, as line 1 has"),
        ("a.csv", b"a,b\n1,2,3\n", "a.csv, row 1 does not have 2 cells, as line 1 has"),
        ("a.csv", b"question;answer\n2+2?;4\n", "a.csv, line 1 has no commas"),
        ("a.csv", b"question\tanswer\n2+2?\t4\n", "a.csv, line 1 has no commas"),
        ("a.csv", b"a\n\xff\n", "a.csv is not UTF-8 after line 0: save it as CSV in UTF-8"),
        ("a.csv", b'a\n"b" c\n', "a.csv, line 2 is not CSV: "),
        ("a.csv", b"a,b\n", "a.csv has no rows"),
        ("a.json", b"[]", "a.json has no rows"),
        ("a.jsonl.gz", gzip.compress(b"{}\n"), "a.jsonl.gz: it is a gzip archive. Unpack it$"),
        ("a.csv", b"PK\x03\x04", "a.csv: it is a ZIP archive or an Excel workbook. Unpack it, or save it as"),
        ("a.csv", "a,b\n1,2\n".encode("utf-16"), "a.csv: it is encoded in UTF-16. Save it as UTF-8$"),
    ],
)
def test_a_file_that_is_not_its_format_is_refused_by_place(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Unreadable, match=reason):
        rows_of(str(tmp_path / name))


def dataset_folder(folder: Path, download_size: int = 99) -> str:
    """As the hub has them: two splits of Parquet and a card."""
    (folder / "data").mkdir(parents=True)
    parquet(
        folder / "data" / "train-00000.parquet", [{"question": f"{n}+1?", "answer": str(n)} for n in range(3)]
    )
    parquet(folder / "data" / "test-00000.parquet", [{"question": "held out?", "answer": "yes"}])
    card = f"---\ndataset_info:\n  download_size: {download_size}\n---\n"
    return str(Path(written(folder / "README.md", card)).parent)


def test_a_dataset_folder_gives_its_splits_with_renamed_columns(tmp_path: Path) -> None:
    source = dataset_folder(tmp_path / "gsm")
    prompts = rows_of(source, columns={"question": "prompt"}, plain=True)
    assert [row["prompt"] for row in prompts] == ["0+1?", "1+1?", "2+1?"]
    assert len(rows_of(source, split="train[:2]")) == 2
    assert rows_of(source, split="test", columns={"question": "messages"}) == [
        {"messages": [{"role": "user", "content": "held out?"}], "answer": "yes"}
    ]


def test_a_renamed_prompt_and_completion_become_messages(tmp_path: Path) -> None:
    source = written(tmp_path / "rows.csv", "q,a,level\n2+2?,4,1\n")
    question = {"role": "user", "content": "2+2?"}
    assert rows_of(source, columns={"q": "prompt"}) == [{"messages": [question], "a": "4", "level": "1"}]
    answered = [question, {"role": "assistant", "content": "4"}]
    assert rows_of(source, columns={"q": "prompt", "a": "completion"}) == [
        {"messages": answered, "level": "1"}
    ]
    turns = written(tmp_path / "rows.json", json.dumps([{"prompt": answered[:1], "solution": 4}]))
    assert rows_of(turns, columns={"prompt": "prompt"}) == [{"messages": [question], "solution": 4}]
    assert rows_of(source, columns={"a": "answer"}) == [{"q": "2+2?", "answer": "4", "level": "1"}]
    with pytest.raises(Unreadable, match="two columns would be named 'level': rename the other one as well"):
        rows_of(source, columns={"a": "level"})


def test_a_renamed_column_may_be_missing_or_null_in_some_rows(tmp_path: Path) -> None:
    rows = [{"q": None, "n": 1}, {"q": "2+2?", "n": 2}]
    expected = [{"n": 1}, {"messages": [{"role": "user", "content": "2+2?"}], "n": 2}]
    assert rows_of(parquet(tmp_path / "rows.parquet", rows), columns={"q": "prompt"}) == expected
    missing = written(tmp_path / "rows.jsonl", '{"n": 1}\n{"q": "2+2?", "n": 2}\n')
    assert rows_of(missing, columns={"q": "prompt"}) == expected
    with pytest.raises(Unreadable, match="there is no column 'p': the columns are n, q"):
        rows_of(missing, columns={"p": "prompt"})


def test_splits_and_columns_that_do_not_exist_are_refused_with_those_that_do(tmp_path: Path) -> None:
    source = dataset_folder(tmp_path / "gsm")
    with pytest.raises(Unreadable, match=r"Unknown split \"tset\". Should be one of \['train', 'test'\]"):
        rows_of(source, split="tset")
    with pytest.raises(Unreadable, match="there is no column 'qestion': the columns are question, answer"):
        rows_of(source, columns={"qestion": "prompt"})
    with pytest.raises(Unreadable, match="is one file and has no split 'test'"):
        rows_of(written(tmp_path / "rows.jsonl", "{}\n"), split="test")


def test_a_large_dataset_is_refused_before_it_is_downloaded(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="has 99000000000 bytes; the limit here is 1073741824"):
        rows_of(dataset_folder(tmp_path / "web", download_size=99 * 10**9))


@pytest.mark.parametrize("name", ["hf://gsm8k", "hf://a/b/c/d"])
def test_a_name_that_the_hub_does_not_have_is_refused(name: str) -> None:
    with pytest.raises(Unreadable, match="is not hf://owner/name"):
        rows_of(name)


def test_without_the_library_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(Unreadable, match=r"pip install 'grpo-service\[data\]'"):
        rows_of(parquet(tmp_path / "a.parquet", [{"a": 1}]))
