from typing import Any

import pytest

from grpo_engine.graders import make_sample, part_names
from tests.engine.graders.helpers import EXAMPLES, read, refusal, reward, score

RIGHT = {"type": "numeric", "reference": "{{item.answer}}"}
SHAPE = {"type": "format", "tags": ["answer"]}


def multi(formula: str, **more: Any) -> dict[str, Any]:
    graders = {"right": RIGHT, "shape": SHAPE}
    return {"type": "multi", "graders": graders, "calculate_output": formula, **more}


def test_the_reward_is_the_formula_over_the_parts() -> None:
    found = score(multi("0.8*right + 0.2*shape"), "<answer>6</answer>", {"answer": 5})
    assert found.reward == pytest.approx(0.2)
    assert found.parts == {"right": 0.0, "shape": 1.0}
    assert found.errors == {}


def test_the_parts_of_a_multi_are_named_by_key_and_a_single_grader_by_its_label() -> None:
    assert part_names(read(**multi("right"))) == ["right", "shape"]
    assert part_names(read(**RIGHT)) == ["numeric"]
    assert part_names(read(**RIGHT, name="Correct answer")) == ["Correct answer"]
    assert list(score({**RIGHT, "name": "Correct answer"}, "5", {"answer": 5}).parts) == ["Correct answer"]


@pytest.mark.parametrize(
    "graders",
    [
        {"right": RIGHT, "shape": SHAPE},
        [{**RIGHT, "name": "right"}, {**SHAPE, "name": "shape"}],
    ],
)
def test_graders_may_be_a_dict_or_a_list_and_become_a_dict(graders: Any) -> None:
    grader = read(type="multi", graders=graders, calculate_output="right*shape")
    assert list(grader.model_dump()["graders"]) == ["right", "shape"]
    assert grader.grade(make_sample("<answer>5</answer>"), {"answer": 5}).reward == 1.0


@pytest.mark.parametrize("name", ["only", ""])
def test_a_single_grader_object_is_keyed_by_its_name_or_type(name: str) -> None:
    key = name or "numeric"
    grader = read(type="multi", graders={**RIGHT, "name": name}, calculate_output=f"2*{key}")
    assert list(grader.graders) == [key]
    assert grader.grade(make_sample("5"), {"answer": 5}).reward == 2.0


def test_explanations_keep_the_keys_of_their_parts_and_at_most_four_parts_have_them() -> None:
    steps = {"type": "process", "grader": RIGHT}
    graders = {"right": RIGHT, **{f"steps{n}": steps for n in range(6)}}
    found = score(
        {"type": "multi", "graders": graders, "calculate_output": "steps0"}, "5\n6", {"answer": 5}
    ).explanations
    assert list(found) == ["steps0", "steps1", "steps2", "steps3"]
    assert [one.score for one in found["steps3"]] == [1.0, 0.0]


def test_an_unscorable_part_makes_the_whole_unscorable_and_is_named() -> None:
    found = score(multi("right + shape"), "5", {})
    assert found.reward is None
    assert found.parts == {"right": None, "shape": 0.0}
    assert {key: error.code for key, error in found.errors.items()} == {"right": "invalid_variable_error"}


def test_invalid_grade_is_the_reward_if_a_part_is_unscorable() -> None:
    found = score(multi("right + shape", invalid_grade=-1), "5", {})
    assert (found.reward, found.parts["right"]) == (-1.0, None)
    assert list(found.errors) == ["right"]


def test_an_unscorable_part_that_the_formula_does_not_use_only_counts_as_an_error() -> None:
    found = score(multi("shape"), "<answer>5</answer>", {})
    assert found.reward == 1.0
    assert list(found.errors) == ["right"]


def test_a_formula_without_a_finite_value_is_an_error_of_calculate_output() -> None:
    found = score(multi("1 / shape"), "5", {"answer": 5})
    assert found.reward is None
    assert found.parts == {"right": 1.0, "shape": 0.0}
    assert found.errors["calculate_output"].code == "other_error"
    assert found.errors["calculate_output"].message == "1 / 0 has no finite value"
    assert reward(multi("log(shape)", invalid_grade=0.25), "5", {"answer": 5}) == 0.25


@pytest.mark.parametrize(
    ("fields", "place", "complaint"),
    [
        ({"calculate_output": "right +"}, ("calculate_output",), "ends too early, at character 8"),
        (
            {"calculate_output": "right + wrong"},
            ("calculate_output",),
            "unknown grader wrong; known: right",
        ),
        ({"graders": {"max": RIGHT}}, ("graders", "max", "[key]"), "max is a function of the formula"),
        ({"graders": {"a-b": RIGHT}}, ("graders", "a-b", "[key]"), "pattern"),
        ({"graders": {}}, ("graders",), "at least 1 item"),
        ({"graders": [RIGHT]}, ("graders",), "index 0 needs a name"),
        ({"graders": [{**RIGHT, "name": "a"}] * 2}, ("graders",), "have the same name"),
        ({"graders": {"a": EXAMPLES["multi"]}}, ("graders", "a"), "'multi' found using 'type'"),
        ({"graders": "right"}, ("graders",), "valid dictionary"),
        (
            {"graders": {"a": {**RIGHT, "reference": "{{item"}}},
            ("graders", "a", "numeric", "reference"),
            "not closed",
        ),
        ({"invalid_grade": float("nan")}, ("invalid_grade",), "finite number"),
        ({"invalid_grade": -1e300}, ("invalid_grade",), "greater than or equal to -1000000000000000"),
        ({"weights": {"right": 1}}, ("weights",), "weights require aggregation gdpo"),
        (
            {"weights": {"wrong": 1}, "aggregation": "gdpo"},
            ("weights",),
            "unknown grader wrong; known: right, shape",
        ),
        ({"weights": {"right": float("inf")}, "aggregation": "gdpo"}, ("weights", "right"), "finite number"),
        ({"calculate_output": ""}, ("calculate_output",), "Field required"),
        ({"aggregation": "mean"}, ("aggregation",), "'formula' or 'gdpo'"),
    ],
)
def test_a_wrong_multi_is_refused_with_its_place(
    fields: dict[str, Any], place: tuple[str, ...], complaint: str
) -> None:
    found, message = refusal(**{**multi("right"), **fields})
    assert found == ("multi", *place)
    assert complaint in message


def test_a_row_is_checked_for_all_parts() -> None:
    grader = read(**multi("right"))
    assert grader.unresolved({"other": 1}) == ["item.answer"]
    assert grader.problems({"other": 1}) == ["right: {{item.answer}} does not resolve"]
    assert grader.problems({"answer": "none"}) == ["right: reference has no number: 'none'"]
    assert grader.problems({"answer": 3}) == []


def test_the_templates_of_all_parts_have_a_limited_number_of_paths_into_the_row() -> None:
    """A check of 50,000 rows resolves each path in each row."""

    def part(num_paths: int) -> dict[str, Any]:
        return {**RIGHT, "name": "", "input": "{{item.a}}" * num_paths + "{{sample.output_text}}" * 999}

    read(**part(255))  # RIGHT's reference is the 256th
    read(**{**multi("a + b"), "graders": {"a": part(127), "b": part(127)}})
    place, complaint = refusal(**{**multi("a + b"), "graders": {"a": part(127), "b": part(128)}})
    assert place == ("multi",)
    assert complaint == "Value error, the templates have 257 paths into the row, at most 256 are allowed"


def test_feedback_of_the_parts_is_joined_with_their_names_in_front() -> None:
    graders = {"right": RIGHT, "again": {**RIGHT, "tag": "answer"}, "shape": SHAPE}
    found = score(
        {"type": "multi", "graders": graders, "calculate_output": "right"},
        "<answer>6</answer>",
        {"answer": 5},
    )
    assert found.feedback == "right: expected 5, found 6\nagain: expected 5, found 6 in <answer>"


def test_parts_graded_elsewhere_combine_to_the_same_score() -> None:
    grader = read(**multi("0.8*right + 0.2*shape"))
    sample, item = make_sample("<answer>6</answer>"), {"answer": 5}
    scores = {key: grader.graders[key].grade(sample, item) for key in ("shape", "right")}
    found = grader.combine(scores)
    assert found == grader.grade(sample, item)
    assert list(found.parts) == ["right", "shape"]


def test_a_multi_of_inline_rules_runs_inline() -> None:
    assert read(**multi("right")).execution == "inline"


def test_gdpo_needs_no_formula_and_shows_the_weighted_sum_that_it_uses() -> None:
    graders = {"right": RIGHT, "shape": SHAPE}
    plain = read(type="multi", graders=graders, aggregation="gdpo")
    assert plain.weights == {"right": 1.0, "shape": 1.0}
    assert plain.calculate_output == "1.0*right + 1.0*shape"
    weighed = read(type="multi", graders=graders, aggregation="gdpo", weights={"shape": -0.5})
    assert weighed.weights == {"right": 1.0, "shape": -0.5}
    assert weighed.calculate_output == "1.0*right + -0.5*shape"
    assert weighed.grade(make_sample("<answer>5</answer>"), {"answer": 5}).reward == 0.5
    assert read(**weighed.model_dump()) == weighed


def test_gdpo_keeps_a_formula_that_is_given() -> None:
    grader = read(**multi("right", aggregation="gdpo", weights={"right": 2}))
    assert grader.calculate_output == "right"
    assert grader.weights == {"right": 2.0, "shape": 1.0}


def test_a_missing_formula_is_reported() -> None:
    place, message = refusal(type="multi", graders={"right": RIGHT})
    assert (place, message) == (("multi", "calculate_output"), "Field required")
