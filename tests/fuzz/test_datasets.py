"""Any bytes as a dataset: rows or problems that name a line of it, never another exception."""

import io
import json
import re
from contextlib import suppress
from typing import Any, get_args

from hypothesis import example, given
from hypothesis import strategies as st

from service.files.contents import check_dataset
from service.jobs.model.dataset import MAX_PROBLEMS, Kind, Problems, Row, read_rows
from service.platform.errors import InvalidRequest
from service.platform.storage import split_lines

TEXTS = st.text(max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "tool", "nobody"]), "content": TEXTS | JSON}
    )
    | JSON,
    max_size=3,
)
ROWS = st.fixed_dictionaries(
    {},
    optional={
        "messages": MESSAGES | JSON,
        "prompt": TEXTS,
        "completion": TEXTS,
        "tools": JSON,
        "answer": JSON,
    },
)
LINES = (
    ROWS.map(lambda row: json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.binary(max_size=30)
    | st.sampled_from(
        [
            *(b"", b" ", b"{", b"[" * 5000, b'{"a":' * 100 + b"1" + b"}" * 100, b"9" * 5000),
            *(b'{"a":1,"a":2}', b'{"prompt":NaN}', b'{"prompt":1e999}', b"\xef\xbb\xbf{}"),
            *(b'{"prompt":"\\ud800"}', b'{"prompt":"\\u0000"}'),
        ]
    )
)
FILES = st.lists(LINES, max_size=6).map(b"\n".join) | st.binary(max_size=60)
KINDS = st.sampled_from(get_args(Kind))
GOOD = st.builds(
    lambda text, item: {**item, "messages": [{"role": "user", "content": text}]},
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8),
    st.dictionaries(st.sampled_from(["answer", "level"]), st.integers() | st.booleans(), max_size=2),
)


def read(content: bytes, kind: Kind, max_rows: int = 100) -> tuple[list[Row], Problems]:
    problems, lines = Problems(), split_lines([content])
    rows = list(read_rows(lines, file="training_file", kind=kind, max_rows=max_rows, problems=problems))
    return rows, problems


@given(FILES, KINDS, st.integers(1, 4))
@example(b"\n" * 300 + b"x", "reinforcement", 4)
@example(b"x\n" * 300, "reinforcement", 1000)
def test_any_bytes_are_rows_or_problems_of_lines_that_exist(
    content: bytes, kind: Kind, max_rows: int
) -> None:
    num_lines = content.count(b"\n") + 1
    rows, problems = read(content, kind, max_rows)
    assert rows or problems.found
    assert len(problems.found) <= MAX_PROBLEMS
    assert len(rows) <= max_rows
    assert [row.line for row in rows] == sorted({row.line for row in rows})
    for problem in problems.found:
        place = re.fullmatch(r"training_file(?:\[(\d+)\].*)?", problem.param, re.DOTALL)
        assert place is not None
        assert place[1] is None or 1 <= int(place[1]) <= num_lines
        assert problem.message.startswith(f"{problem.param}: ")
        problem.message.encode()  # goes out as UTF-8


@given(st.lists(GOOD, min_size=1, max_size=5), st.sampled_from([b"", b"\n", b"\r\n", b"\n\n \n"]))
def test_blank_lines_at_the_end_change_nothing(rows: list[dict[str, Any]], end: bytes) -> None:
    content = b"\n".join(json.dumps(row).encode() for row in rows)
    assert read(content + end, "reinforcement") == read(content, "reinforcement")
    assert read(content, "reinforcement")[1].found == []


@given(FILES)
def test_an_upload_of_any_bytes_is_taken_or_refused_with_its_reason(content: bytes) -> None:
    with suppress(InvalidRequest):
        taken = check_dataset(io.BytesIO(content), max_rows=4)
        assert taken.num_bytes == len(content)


@given(st.lists(st.binary(max_size=12) | st.just(b"\n"), max_size=8))
def test_lines_do_not_depend_on_how_their_bytes_arrive(pieces: list[bytes]) -> None:
    assert list(split_lines(pieces)) == list(split_lines([b"".join(pieces)]))
