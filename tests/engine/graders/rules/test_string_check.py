import pytest

from tests.engine.graders.helpers import EXAMPLES, read, refusal, reward

GRADER = EXAMPLES["string_check"]


@pytest.mark.parametrize(
    ("operation", "text", "reference", "expected"),
    [
        ("eq", "Paris", "Paris", 1.0),
        ("eq", "paris", "Paris", 0.0),
        ("eq", "Paris ", "Paris", 0.0),
        ("ne", "Paris", "Paris", 0.0),
        ("ne", "paris", "Paris", 1.0),
        ("neq", "Rome", "Paris", 1.0),
        ("like", "It is Paris.", "Paris", 1.0),
        ("like", "It is paris.", "Paris", 0.0),
        ("like", "Par", "Paris", 0.0),
        ("ilike", "It is pARIS.", "Paris", 1.0),
        ("ilike", "STRASSE", "Straße", 1.0),
        ("ilike", "Rome", "Paris", 0.0),
    ],
)
def test_an_operation_compares_two_texts(operation: str, text: str, reference: str, expected: float) -> None:
    assert reward({**GRADER, "operation": operation}, text, {"answer": reference}) == expected


def test_neq_is_read_as_ne() -> None:
    assert read(**{**GRADER, "operation": "neq"}).operation == "ne"


def test_an_unknown_operation_is_refused_by_name() -> None:
    place, message = refusal(**{**GRADER, "operation": "regex"})
    assert place == ("string_check", "operation")
    assert "'eq', 'ne', 'like' or 'ilike'" in message
