from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grpo_engine.contract.records import Sample
from grpo_engine.graders import make_sample
from grpo_engine.graders.errors import UnscorableError
from grpo_engine.graders.template import TemplateError, parse, render, unresolved
from tests.engine.graders.helpers import EXAMPLES, read, refusal, score

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
SAMPLE = make_sample("hello")


def filled(template: str, item: dict[str, Any] | None = None, sample: Sample = SAMPLE) -> str:
    return render(template, sample, item or {})


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("plain", "plain"),
        ("", ""),
        ("{{sample.output_text}}", "hello"),
        ("{{ sample.output_text }}!", "hello!"),
        ("{{item.a.b[1].c}}", "deep"),
        ('{{item["with-hyphen"]}}', "hyphen"),
        ("{{item[\"a key\"].x}} {{item['a key'].x}}", "1 1"),
        (r'{{item["quote\"d"]}}', "quoted"),
        ('{{item["}}"]}}', "braces"),
        ("{{item.zahlwörter}}", "zwei"),
        ("}} {a} {", "}} {a} {"),
    ],
)
def test_a_path_is_replaced_by_its_value(template: str, expected: str) -> None:
    item = {
        "a": {"b": [0, {"c": "deep"}]},
        "with-hyphen": "hyphen",
        "a key": {"x": 1},
        'quote"d': "quoted",
        "}}": "braces",
        "zahlwörter": "zwei",
    }
    assert filled(template, item) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", "text"),
        (3, "3"),
        (0.5, "0.5"),
        (True, "true"),
        (None, "null"),
        ([1, "a"], '[1,"a"]'),
        ({"k": "ü"}, '{"k":"ü"}'),
    ],
)
def test_other_values_than_strings_become_compact_json(value: Any, expected: str) -> None:
    assert filled("{{item.x}}", {"x": value}) == expected


def test_the_parsed_output_and_tool_calls_have_paths() -> None:
    calls = ({"function": {"name": "search"}},)
    sample = Sample(output_text='{"x": {"y": 2}}', output_json={"x": {"y": 2}}, output_tools=calls)
    template = "{{sample.output_json.x.y}} {{sample.output_json}} {{sample.output_tools[0].function.name}}"
    assert filled(template, sample=sample) == '2 {"x":{"y":2}} search'


def test_model_output_is_never_expanded_again() -> None:
    sample = make_sample("{{item.secret}} {0} %s {{sample.output_text}}")
    assert filled("{{sample.output_text}}", {"secret": "s"}, sample) == sample.output_text


@pytest.mark.parametrize("path", ["item.b", "item.a.b", "item.a[0]", "item.list[2]", "item.list.x"])
def test_a_path_without_a_value_is_an_invalid_variable(path: str) -> None:
    with pytest.raises(UnscorableError, match="does not resolve") as caught:
        filled(f"{{{{{path}}}}}", {"a": "text", "list": [1, 2]})
    assert caught.value.code == "invalid_variable_error"


def test_a_json_path_into_an_output_that_is_not_json_is_a_parse_error() -> None:
    with pytest.raises(UnscorableError) as caught:
        filled("{{sample.output_json.x}}", sample=make_sample("no json"))
    assert caught.value.code == "sample_parse_error"


def test_a_json_output_without_the_field_is_an_invalid_variable() -> None:
    with pytest.raises(UnscorableError) as caught:
        filled("{{sample.output_json.x}}", sample=make_sample("{}"))
    assert caught.value.code == "invalid_variable_error"


def test_a_template_cannot_multiply_an_output_beyond_the_limit() -> None:
    with pytest.raises(UnscorableError, match="longer than"):
        filled("{{sample.output_text}}" * 50, sample=make_sample("x" * 100_000))


def test_unresolved_lists_the_rows_missing_paths_and_no_sample_paths() -> None:
    template = '{{item.a}} {{item.b.c}} {{item["d e"][0]}} {{sample.output_json.x}}'
    assert unresolved(template, {"a": 1}) == ["item.b.c", 'item["d e"][0]']


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("x {{item.a", "{{ at character 3 is not closed"),
        ("{{}}", "must start with item or sample"),
        ("{{ }}", "must start with item or sample"),
        ("{{items.a}}", "{{items.a}} must start with item or sample"),
        ("{{item}}", "must name a field, such as {{item.name}}"),
        ("{{sample}}", "must name a field"),
        ("{{sample.text}}", "sample has output_text, output_json, output_tools"),
        ("{{item.a-b}}", "'-' at character 9 is not part of a path"),
        ("{{item.a|upper}}", "'|' at character 9"),
        ("{{item.a[-1]}}", "'[' at character 9"),
        ("{{item[a]}}", "'[' at character 7"),
        ("{{item.a + item.b}}", "not part of a path"),
        ("{{{{item.a}}}}", "not part of a path"),
    ],
)
def test_a_wrong_template_is_refused_with_its_reason(template: str, complaint: str) -> None:
    with pytest.raises(TemplateError) as caught:
        parse(template)
    assert complaint in str(caught.value)


@pytest.mark.parametrize("field", ["input", "reference"])
def test_a_wrong_template_is_a_validation_error_of_its_field(field: str) -> None:
    place, message = refusal(**{**EXAMPLES["string_check"], field: "{{item.a"})
    assert place == ("string_check", field)
    assert "not closed" in message


def test_a_row_without_the_field_is_unscorable_and_found_beforehand() -> None:
    grader = EXAMPLES["string_check"]
    found = score(grader, "x", {"other": 1})
    assert (found.reward, found.parts) == (None, {"string_check": None})
    assert found.errors["string_check"].code == "invalid_variable_error"
    assert read(**grader).unresolved({"other": 1}) == ["item.answer"]
    assert read(**grader).unresolved({"answer": "1"}) == []


@given(st.text() | st.text(alphabet="{}item.sample[]\"'0 -"))
@example("{{item." + "a." * 2000)
@example("{{" * 5000)
def test_any_text_is_a_template_or_refused(template: str) -> None:
    try:
        parts = parse(template)
    except TemplateError:
        return
    if not any(not isinstance(part, str) for part in parts):
        assert render(template, SAMPLE, {}) == template


@given(st.dictionaries(st.text(), JSON), st.text())
def test_any_key_can_be_reached_in_brackets(item: dict[str, Any], text: str) -> None:
    for key, value in item.items():
        quoted = key.replace("\\", "\\\\").replace('"', '\\"')
        template = f'<{{{{item["{quoted}"]}}}}|{{{{sample.output_text}}}}>'
        assert unresolved(template, item) == []
        rendered = render(template, make_sample(text), item)
        assert rendered.endswith(f"|{text}>")
        if isinstance(value, str):
            assert rendered == f"<{value}|{text}>"
