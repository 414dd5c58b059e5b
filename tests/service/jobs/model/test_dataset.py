"""Dataset rows: what is accepted, and where exactly a bad one is bad."""

import json
from typing import Any

import pytest

from service.jobs.model.dataset import MAX_DEPTH, MAX_PROBLEMS, Kind, Problems, Row, read_rows

USER = {"role": "user", "content": "Hi"}
ASSISTANT = {"role": "assistant", "content": "Hello"}


def read(*lines: bytes, kind: Kind = "reinforcement", max_rows: int = 1000) -> tuple[list[Row], Problems]:
    problems = Problems()
    rows = list(read_rows(lines, file="training_file", kind=kind, max_rows=max_rows, problems=problems))
    return rows, problems


def line(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def faults(*lines: bytes, kind: Kind = "reinforcement", max_rows: int = 1000) -> list[tuple[str, str]]:
    _, problems = read(*lines, kind=kind, max_rows=max_rows)
    return [(one.param, one.message.removeprefix(f"{one.param}: ")) for one in problems.found]


def test_everything_but_messages_and_tools_is_the_item() -> None:
    tools = [{"type": "function"}]
    rows, problems = read(line(messages=[USER], tools=tools, answer=4, level={"n": 1}))
    assert problems.found == []
    assert rows[0].item == {"answer": 4, "level": {"n": 1}}
    assert rows[0].messages == (USER,)
    assert rows[0].tools == tuple(tools)
    assert rows[0].line == 1


def test_a_prompt_row_needs_no_messages() -> None:
    rows, problems = read(line(prompt="2+2=", answer="4"))
    assert problems.found == []
    assert (rows[0].prompt, rows[0].messages) == ("2+2=", None)
    assert rows[0].item == {"prompt": "2+2=", "answer": "4"}


def test_a_byte_order_mark_and_blank_lines_at_the_end_are_tolerated() -> None:
    rows, problems = read(b"\xef\xbb\xbf" + line(messages=[USER]), line(messages=[USER]) + b"\r", b"", b" ")
    assert problems.found == []
    assert [row.line for row in rows] == [1, 2]


def test_content_may_be_text_parts() -> None:
    parts = [{"type": "text", "text": "2"}, {"type": "text", "text": "+2"}]
    rows, problems = read(line(messages=[{"role": "user", "content": parts}]))
    assert problems.found == []
    assert len(rows) == 1


def test_a_supervised_prompt_row_has_a_completion() -> None:
    rows, problems = read(line(prompt="2+2=", completion="4"), kind="supervised")
    assert problems.found == []
    assert rows[0].completion == "4"
    assert faults(line(prompt="2+2="), kind="supervised") == [
        (
            "training_file[1].completion",
            "the row has no completion, but prompt "
            "(`grpo files upload --map FIELD=completion` renames a field)",
        )
    ]


@pytest.mark.parametrize(
    ("content", "place", "reason"),
    [
        (b"{", "training_file[1]", "is not JSON: "),
        (b"[1]", "training_file[1]", "is not a JSON object"),
        (
            b'{"prompt": "a", "prompt": "b"}',
            "training_file[1]",
            "is not JSON: the key 'prompt' appears twice in one object",
        ),
        (
            b'{"%b": 1, "%b": 2}' % (b"k" * 10**6, b"k" * 10**6),
            "training_file[1]",
            f"is not JSON: the key '{'k' * 40}' appears twice in one object",
        ),
        (b'{"prompt": "a", "x": NaN}', "training_file[1]", "is not JSON: NaN is not a JSON number"),
        (b'{"prompt": "a", "x": 1e999}', "training_file[1]", "is not JSON: a number is too large"),
        (b'{"prompt": "\xff"}', "training_file[1]", "is not UTF-8 (byte 13 of the line)"),
        (b'{"prompt": "a\\u0000"}', "training_file[1]", "contains a NUL character"),
        (b'{"prompt": "a\\ud800"}', "training_file[1]", "contains half of a surrogate pair"),
        (
            line(question="2+2", answer=4),
            "training_file[1].messages",
            "the row has neither messages nor prompt, but question, answer: give one of them "
            "(`grpo files upload --map FIELD=prompt` renames a field)",
        ),
        (line(), "training_file[1].messages", "the row has neither messages nor prompt, but no field: give"),
        (
            line(prompt="a", messages=[USER]),
            "training_file[1].messages",
            "the row has both messages and prompt: give one of them (`grpo files upload --map prompt=",
        ),
        (line(prompt=""), "training_file[1].prompt", "must be a non-empty string"),
        (
            line(prompt=[USER]),
            "training_file[1].prompt",
            "must be a string; a list of messages belongs in messages "
            "(`grpo files upload --map prompt=messages` renames a field)",
        ),
        (
            line(prompt=[USER], completion=[ASSISTANT]),
            "training_file[1].prompt",
            "must be a string; a list of messages belongs in messages "
            "(write those of prompt and completion as one list)",
        ),
        (line(messages=[]), "training_file[1].messages", "must be a list of at least one message"),
        (line(messages=["a"]), "training_file[1].messages[0]", "must be an object with role and content"),
        (
            line(messages=[{"role": "robot", "content": "a"}]),
            "training_file[1].messages[0].role",
            'must be one of developer, system, user, assistant, tool, not "robot"',
        ),
        (
            line(messages=[{"from": "human", "value": "a"}]),
            "training_file[1].messages[0].role",
            "must be one of developer, system, user, assistant, tool, but the message has from, value",
        ),
        (
            line(messages=[USER, {**ASSISTANT, "function_call": {"name": "add", "arguments": "{}"}}, USER]),
            "training_file[1].messages[1].function_call",
            "is not supported: write the call in tool_calls",
        ),
        (
            line(messages=[{"role": "user", "content": 4}]),
            "training_file[1].messages[0].content",
            "must be a string or a list of",
        ),
        (
            line(messages=[USER, ASSISTANT]),
            "training_file[1].messages",
            "the last message must have the role user, not assistant: "
            "such rows are for the method supervised",
        ),
        (line(messages=[USER], tools={}), "training_file[1].tools", "must be a list of objects"),
        (
            line(messages=[USER], tools="[]"),
            "training_file[1].tools",
            "must be a list of objects, not their JSON as a string",
        ),
        (
            line(messages=[USER, {**ASSISTANT, "tool_calls": ["add"]}, USER]),
            "training_file[1].messages[1].tool_calls",
            "must be a list of objects",
        ),
    ],
)
def test_a_bad_row_is_located_and_explained(content: bytes, place: str, reason: str) -> None:
    found = faults(content)
    assert [where for where, _ in found] == [place]
    assert found[0][1].startswith(reason)


def test_a_supervised_row_ends_with_the_assistant() -> None:
    assert faults(line(messages=[USER]), kind="supervised") == [
        (
            "training_file[1].messages",
            "the last message must have the role assistant, not user: "
            "such rows are for the method reinforcement",
        )
    ]
    assert faults(line(messages=[ASSISTANT]), kind="supervised") == [
        ("training_file[1].messages", "must have a message before the assistant's")
    ]
    assert faults(line(messages=[USER, {"role": "assistant", "content": ""}]), kind="supervised") == [
        ("training_file[1].messages[1].content", "must not be empty: it is what the model learns")
    ]
    assert faults(line(messages=[USER, {**ASSISTANT, "weight": 0}]), kind="supervised") == [
        (
            "training_file[1].messages[1].weight",
            "must not be 0: the model learns the last message. Remove it, or the row",
        )
    ]
    assert faults(line(messages=[USER, {**ASSISTANT, "weight": 1}]), kind="supervised") == []


def test_a_supervised_row_may_end_with_a_tool_call_without_text() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    row = line(messages=[USER, {"role": "assistant", "content": None, "tool_calls": [call]}])
    assert faults(row, kind="supervised") == []


def test_each_bad_row_is_reported_with_its_line() -> None:
    good, bad = line(messages=[USER]), line(messages=[ASSISTANT])
    assert [where for where, _ in faults(good, bad, good, bad)] == [
        "training_file[2].messages",
        "training_file[4].messages",
    ]


def test_a_blank_line_between_rows_is_a_problem() -> None:
    assert faults(line(prompt="a"), b"", b"", line(prompt="b")) == [
        ("training_file[2]", "is blank: only lines at the end of the file may be")
    ]


def test_a_file_without_rows_is_a_problem() -> None:
    assert faults() == [("training_file", "has no rows")]
    assert faults(b"", b"  ") == [("training_file", "has no rows")]


def test_reading_stops_at_the_first_row_over_the_limit() -> None:
    rows, problems = read(*[line(prompt="a")] * 5, max_rows=3)
    assert len(rows) == 3
    assert [one.message for one in problems.found] == ["training_file: has more than 3 rows, the limit"]


def test_all_problems_are_counted_by_kind_and_the_first_hundred_kept() -> None:
    _, problems = read(*[b"{"] * 300, *[b"[]"] * 7, line(prompt="a"), max_rows=1000)
    assert len(problems.found) == MAX_PROBLEMS
    assert (problems.total, problems.alike(problems.found[0])) == (307, 300)


def test_problems_that_differ_by_their_numbers_only_are_of_one_kind() -> None:
    problems = Problems()
    for row in range(1, 181):
        problems.add(f"training_file[{row}]", f"has {1000 + row:,} tokens, more than max_tokens = 512")
    others = Problems()
    others.add("training_file[7].answer", "is not in this row")
    problems.extend(others)
    assert (problems.total, len(problems.found)) == (181, MAX_PROBLEMS)
    assert problems.alike(problems.found[0]) == 180


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 100_000])
def test_a_deeply_nested_row_is_refused(depth: int) -> None:
    content = b'{"prompt": "a", "x": ' + b"[" * depth + b"]" * depth + b"}"
    assert faults(content) == [("training_file[1]", f"is nested deeper than {MAX_DEPTH} levels")]
