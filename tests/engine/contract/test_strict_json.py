"""Strict JSON: what it refuses beyond Python's parser."""

import pytest

from grpo_engine.contract.strict_json import StrictJsonError, parse_document, parse_json


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[NaN]", "NaN is not a JSON number"),
        ("[-Infinity]", "-Infinity is not a JSON number"),
        ("1e999", "a number is too large"),
        ("9" * 6000, "a number is too large"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_text_that_only_python_accepts_is_refused(text: str, reason: str) -> None:
    for parse in (parse_json, parse_document):
        with pytest.raises(StrictJsonError, match=f"^{reason}$"):
            parse(text)


def test_only_a_document_refuses_a_repeated_key() -> None:
    text = '{"a": [{"b": 1, "b": 2}]}'
    assert parse_json(text) == {"a": [{"b": 2}]}
    with pytest.raises(StrictJsonError, match="'b' appears twice"):
        parse_document(text)
