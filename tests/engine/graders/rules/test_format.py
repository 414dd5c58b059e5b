import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.graders.helpers import refusal, reward, score


def tags(text: str, *names: str, strict: bool = False) -> float | None:
    return reward({"type": "format", "tags": list(names), "strict": strict}, text)


@pytest.mark.parametrize(
    ("text", "loose", "strict"),
    [
        ("<think>a</think><answer>b</answer>", 1.0, 1.0),
        (" <think>a</think>\n\n<answer>b</answer>\n", 1.0, 1.0),
        ("<think></think><answer></answer>", 1.0, 1.0),
        ("so <think>a</think> hm <answer>b</answer> end", 1.0, 0.0),
        ("<think>a</think><answer>b</answer>.", 1.0, 0.0),
        ("<answer>b</answer><think>a</think>", 0.0, 0.0),
        ("<think>a</think><answer>b", 0.0, 0.0),
        ("<think>a<answer>b</answer></think>", 0.0, 0.0),
        ("<think>a<answer></think>b</answer>", 0.0, 0.0),
        ("</think>a<think><answer>b</answer>", 0.0, 0.0),
        ("<think>a</think><answer>b</answer><answer>c</answer>", 0.0, 0.0),
        ("<think>a</think></think><answer>b</answer>", 0.0, 0.0),
        ("<Think>a</Think><answer>b</answer>", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_tags_must_occur_once_closed_and_in_order(text: str, loose: float, strict: float) -> None:
    assert tags(text, "think", "answer") == loose
    assert tags(text, "think", "answer", strict=True) == strict


@pytest.mark.parametrize(
    ("pattern", "match", "text", "expected"),
    [
        (r"\d+", "full", "123", 1.0),
        (r"\d+", "full", "a123", 0.0),
        (r"\d+", "search", "a123b", 1.0),
        (r"a.b", "full", "a\nb", 0.0),
        (r"(?s)a.b", "full", "a\nb", 1.0),
        (r"(?i)(yes|no)", "full", "YES", 1.0),
        (r"ü+", "full", "üü", 1.0),
        (r"", "full", "", 1.0),
        (r"^b$", "search", "a\nb", 0.0),
        (r"(?m)^b$", "search", "a\nb", 1.0),
    ],
)
def test_a_pattern_matches_all_or_some_of_the_text(
    pattern: str, match: str, text: str, expected: float
) -> None:
    assert reward({"type": "format", "pattern": pattern, "match": match}, text) == expected


def test_a_pattern_that_stalls_backtracking_engines_takes_linear_time() -> None:
    started = time.thread_time()
    assert reward({"type": "format", "pattern": r"(x+x+)+y"}, "x" * 50_000) == 0.0
    assert time.thread_time() - started < 1.0


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z]"},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "uniqueItems": True},
    },
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"tag": {"enum": ["a", "b"]}},
    "$schema": "https://json-schema.org/draft/2020-12/schema",
}

PERSON_IN_A_LIST = {
    **{name: PERSON[name] for name in ("type", "required", "additionalProperties")},
    "properties": {"name": {"type": "string", "pattern": "^[A-Z]"}, "tags": {"items": {"enum": ["a", "b"]}}},
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"name": "Ada"}', 1.0),
        (' {"name": "Ada", "tags": ["a", "b"]}\n', 1.0),
        ('{"name": "ada"}', 0.0),
        ('{"name": "Ada", "tags": ["c"]}', 0.0),
        ('{"name": "Ada", "tags": ["a", "a"]}', 0.0),
        ('{"name": "Ada", "age": 1}', 0.0),
        ('{"tags": []}', 0.0),
        ('```json\n{"name": "Ada"}\n```', 0.0),
        ('{"name": NaN}', 0.0),
        ("not json", 0.0),
        ("[" * 100_000, 0.0),
    ],
)
def test_the_output_conforms_to_a_json_schema_or_not(text: str, expected: float) -> None:
    assert reward({"type": "format", "json_schema": PERSON}, text) == expected


def test_a_format_may_look_at_another_text_than_the_output() -> None:
    grader = {"type": "format", "input": "{{sample.output_json.id}}", "pattern": r"[a-f0-9]{4}"}
    assert reward(grader, '{"id": "00ff"}') == 1.0
    assert score(grader, "00ff").errors["format"].code == "sample_parse_error"


@pytest.mark.parametrize(
    ("fields", "place", "complaint"),
    [
        ({}, (), "give one of tags, pattern and json_schema, not none"),
        ({"tags": ["a"], "pattern": "b"}, (), "not tags and pattern"),
        ({"tags": ["a", "a"]}, (), "tags must differ"),
        ({"tags": []}, ("tags",), "at least 1 item"),
        ({"tags": ["a b"]}, ("tags", 0), "pattern"),
        ({"pattern": "a", "strict": True}, (), "strict requires tags"),
        ({"tags": ["a"], "match": "search"}, (), "match requires pattern"),
        ({"pattern": "(a"}, ("pattern",), "not an RE2 pattern: missing )"),
        ({"pattern": r"(a)\1"}, ("pattern",), "not an RE2 pattern: invalid escape sequence"),
        ({"pattern": "(?=a)"}, ("pattern",), "not an RE2 pattern"),
        ({"pattern": "((a{100}){100}){10}"}, ("pattern",), "not an RE2 pattern"),
        ({"pattern": r"(?s).*(a|b)(.|\n){900}c"}, ("pattern",), "pattern too large"),
        ({"pattern": "a" * 5000}, ("pattern",), "at most 4096 characters"),
    ],
)
def test_a_wrong_format_is_refused_with_its_reason(
    fields: dict[str, Any], place: tuple[Any, ...], complaint: str
) -> None:
    found, message = refusal(type="format", **fields)
    assert found == ("format", *place)
    assert complaint in message


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ({"type": "objekt"}, "schema.type: 'objekt' is not valid"),
        ({"properties": {"a": {"type": 3}}}, "schema.properties.a.type"),
        (
            {"$ref": "https://example.com/s.json"},
            "schema.$ref: 'https://example.com/s.json' must be # or #/…",
        ),
        ({"items": {"$ref": "#/$defs/gone"}}, "schema.items.$ref: '#/$defs/gone' must be"),
        ({"$ref": "file:///etc/passwd"}, "must be # or #/…"),
        (
            {"anyOf": [{"patternProperties": {"(x+x+)+y": {}}}]},
            "schema.anyOf[0].patternProperties is not supported",
        ),
        ({"not": {"$id": "https://example.com"}}, "schema.not.$id is not supported"),
        ({"items": {"$schema": "http://json-schema.org/draft-07/schema#"}}, "schema.items.$schema is not"),
        ({"$schema": "https://example.com/mine"}, "schema.$schema: use 2020-12"),
        ({"pattern": "(?=a)"}, "schema.pattern: not an RE2 pattern"),
        (
            {"$ref": "#/mine", "mine": {"patternProperties": {"^(a+)+$": {}}}},
            "schema.$ref: '#/mine' must lead to a subschema",
        ),
        (
            {"$ref": "#/properties", "properties": {"patternProperties": {"^(a+)+$": {}}}},
            "schema.$ref: '#/properties' must lead to a subschema",
        ),
        (
            {"items": {"$ref": "#/const"}, "const": {"$ref": "https://example.com/s.json"}},
            "schema.items.$ref: '#/const' must lead to a subschema",
        ),
        ({"maximum": float("nan")}, "not JSON compliant"),
        ({"description": "x" * 40_000}, "at most 32768 characters"),
        ({"const": "\ud800"}, "surrogates not allowed"),
    ],
)
def test_a_wrong_schema_is_refused_with_its_place(schema: dict[str, Any], complaint: str) -> None:
    place, message = refusal(type="format", json_schema=schema)
    assert place == ("format", "json_schema")
    assert complaint in message


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"not": schema}
    return schema


def test_a_schema_nested_too_deeply_is_refused() -> None:
    assert "nested too deeply" in refusal(type="format", json_schema=nested(2000))[1]


def doubling(levels: int) -> dict[str, Any]:
    """Each level checks the next one twice: 2^levels steps."""
    steps = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**steps, f"d{levels}": {"type": "object"}}}


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ({"type": [{"a": number} for number in range(2500)]}, "at most 100 entries"),
        ({"items": {"dependencies": {"a": [{"a": n} for n in range(2500)]}}}, "at most 100 entries"),
        ({"properties": {str(n): {"pattern": f"{n}a{{999}}"} for n in range(101)}}, "100,000 instructions"),
    ],
    ids=["type", "dependencies", "patterns"],
)
def test_a_schema_that_takes_seconds_to_check_is_refused_at_once(
    schema: dict[str, Any], complaint: str
) -> None:
    """Schemas of requests are checked on the API's event loop."""
    started = time.thread_time()
    assert complaint in refusal(type="format", json_schema=schema)[1]
    assert time.thread_time() - started < 2


def test_a_schema_may_have_many_types_in_its_examples_and_many_patterns() -> None:
    examples = [{"type": list("abc") * 100}, {"type": [{}, 1]}]
    properties = {f"p{number}": {"pattern": rf"^\d+{number}$"} for number in range(300)}
    assert (
        reward({"type": "format", "json_schema": {"examples": examples, "properties": properties}}, "{}") == 1
    )


@pytest.mark.parametrize(
    ("schema", "instance"),
    [
        (doubling(40), {}),
        ({"$ref": "#"}, {}),
        ({"items": {"anyOf": [*[{"type": "string"}] * 100, {}]}}, list(range(5000))),
        ({"uniqueItems": True}, [{"a": n} for n in range(5000)]),
        ({"uniqueItems": True}, [{"a": [1] * 80 + [n]} for n in range(1000)]),
        ({"items": {"enum": list(range(1000, 6000))}}, [5999] * 9000),
        ({"items": {"const": [[1]] * 5000}}, [[[1]] * 50] * 2000),
        ({"items": {"properties": {f"p{n}": True for n in range(1900)}}}, [{}] * 9000),
        ({"items": {"dependentRequired": {f"p{n}": ["a"] for n in range(1300)}}}, [{}] * 9000),
        ({"allOf": [{"pattern": "a[ab]{299}$"}] * 900}, "ab" * 200_000),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
def test_a_schema_that_takes_too_much_work_is_unscorable(schema: dict[str, Any], instance: Any) -> None:
    """Before it has cost seconds: some of these would take an hour."""
    started = time.thread_time()
    found = score({"type": "format", "json_schema": schema}, json.dumps(instance))
    assert time.thread_time() - started < 5
    assert found.reward is None
    assert found.errors["format"].code == "other_error"


def test_an_ordinary_schema_has_room_for_thousands_of_values() -> None:
    people = [{"name": f"A{n}", "tags": ["a", "b"]} for n in range(700)]
    assert reward({"type": "format", "json_schema": {"items": PERSON_IN_A_LIST}}, json.dumps(people)) == 1.0
    numbers = {"type": "array", "items": {"enum": list(range(10))}, "maxItems": 9000}
    assert reward({"type": "format", "json_schema": numbers}, json.dumps([3] * 9000)) == 1.0
    distinct = {"type": "array", "uniqueItems": True}
    assert reward({"type": "format", "json_schema": distinct}, json.dumps(list(range(900)))) == 1.0


def test_an_integer_beyond_float_is_no_multiple_of_a_fraction() -> None:
    grader = {"type": "format", "json_schema": {"multipleOf": 0.5}}
    assert [reward(grader, text) for text in ("1.5", "1.7", "1" + "0" * 400)] == [1.0, 0.0, 0.0]


def test_a_text_too_long_to_check_is_unscorable() -> None:
    found = score({"type": "format", "pattern": "a*"}, "a" * 500_001)
    assert found.reward is None
    assert "longer than 500000 characters" in found.errors["format"].message


@given(st.text() | st.text(alphabet='<>/think answer{}"[]:,1'))
def test_no_text_makes_a_format_fail(text: str) -> None:
    assert tags(text, "think", strict=True) in (0.0, 1.0)
    assert reward({"type": "format", "pattern": "(?s)<think>.*</think>"}, text) in (0.0, 1.0)
    assert reward({"type": "format", "json_schema": PERSON}, text) in (0.0, 1.0)
