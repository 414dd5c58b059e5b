from typing import Any

import pytest

from tests.engine.graders.helpers import EXAMPLES, refusal, score

LINEAR = {"type": "length", "mode": "linear", "target": 10, "maximum": 20}


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [(1, 0.0), (10, 0.0), (11, -0.1), (15, -0.5), (20, -1.0), (21, -1.0), (10_000, -1.0)],
)
def test_linear_falls_from_target_to_maximum(num_tokens: int, expected: float) -> None:
    assert score(LINEAR, "text", num_tokens=num_tokens).reward == pytest.approx(expected)


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [(1, 0.0), (16_384, 0.0), (16_385, -1 / 4096), (18_432, -0.5), (20_480, -1.0), (20_481, -1.0)],
)
def test_soft_overlong_has_the_values_of_dapos_equation_13(num_tokens: int, expected: float) -> None:
    grader = {"type": "length", "mode": "soft_overlong", "maximum": 20_480, "buffer": 4096}
    assert score(grader, "text", num_tokens=num_tokens).reward == expected


def test_characters_are_counted_as_code_points() -> None:
    assert score({**LINEAR, "unit": "characters"}, "ü" * 15).reward == -0.5


def test_an_unknown_number_of_tokens_is_unscorable() -> None:
    found = score(LINEAR, "text", num_tokens=0)
    assert found.reward is None
    assert found.errors["length"].message == "the number of tokens is unknown here"


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"mode": "linear", "maximum": 20}, "mode linear requires target"),
        ({"mode": "linear", "maximum": 20, "target": 5, "buffer": 5}, "mode linear does not use buffer"),
        ({"mode": "linear", "maximum": 20, "target": 20}, "target must be less than maximum"),
        ({"mode": "soft_overlong", "maximum": 20}, "mode soft_overlong requires buffer"),
        ({"mode": "soft_overlong", "maximum": 20, "buffer": 21}, "buffer exceeds maximum"),
    ],
)
def test_options_that_do_not_fit_the_mode_are_refused(fields: dict[str, Any], complaint: str) -> None:
    assert complaint in refusal(type="length", **fields)[1]


def test_an_unknown_option_is_refused_by_name() -> None:
    place, message = refusal(**EXAMPLES["linear"], max_length=3)
    assert place == ("length", "max_length")
    assert "not permitted" in message
