from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_engine.graders import make_sample, part_names
from grpo_engine.graders.pool.pool import Grading
from grpo_engine.graders.steps import split
from tests.engine.graders.helpers import read, refusal, score

DIGIT = {"type": "format", "pattern": "[0-9]", "match": "search"}


def process(**more: Any) -> dict[str, Any]:
    return {"type": "process", "grader": DIGIT, **more}


def pieces(text: str, splitter: str) -> list[tuple[str, str]]:
    """Each step's text, and its share of the whole."""
    steps = split(text, splitter, 64)
    starts = [0, *(step.end for step in steps)]
    return [(step.text, text[start : step.end]) for step, start in zip(steps, starts, strict=False)]


@pytest.mark.parametrize(
    ("splitter", "text", "expected"),
    [
        ("lines", "a\nb", [("a", "a\n"), ("b", "b")]),
        ("lines", "\n\n a \r\n \n\nb\n", [("a", "\n\n a \r\n \n\n"), ("b", "b\n")]),
        ("lines", "one", [("one", "one")]),
        ("paragraphs", "a\nb\n\nc\n \n\nd", [("a\nb", "a\nb\n\n"), ("c", "c\n \n\n"), ("d", "d")]),
        ("paragraphs", "ä\n\n\U0001f600é\n\n", [("ä", "ä\n\n"), ("\U0001f600é", "\U0001f600é\n\n")]),
        (
            "steps",
            "So:\nStep 1: add\n3\n  step 2. carry\n",
            [("Step 1: add\n3", "So:\nStep 1: add\n3\n"), ("step 2. carry", "  step 2. carry\n")],
        ),
        (
            "steps",
            "### Step 1: a\n**Step 2:** b Step 3: c",
            [("### Step 1: a", "### Step 1: a\n"), ("**Step 2:** b Step 3: c", "**Step 2:** b Step 3: c")],
        ),
        ("; *", "a; b;;c;", [("a", "a; "), ("b", "b;;"), ("c", "c;")]),
        ("x*", "axxb", [("a", "axx"), ("b", "b")]),
        # \\C is a byte: a pattern may end inside of a character.
        (r"x\C", "axéb", [("a", "axé"), ("b", "b")]),
    ],
)
def test_steps_cover_the_text(splitter: str, text: str, expected: list[tuple[str, str]]) -> None:
    assert pieces(text, splitter) == expected


@given(text=st.text(alphabet="ab1: \n\r;é\U0001f600"), splitter=st.sampled_from(["lines", "paragraphs", ";"]))
def test_steps_cover_any_text_and_none_is_empty(text: str, splitter: str) -> None:
    found = pieces(f"{text}x", splitter)
    assert "".join(share for _, share in found) == f"{text}x"
    assert all(step and step in share for step, share in found)


@pytest.mark.parametrize(
    ("aggregate", "expected"), [("mean", 0.5), ("last", 1.0), ("min", 0.0), ("product", 0.0)]
)
def test_the_reward_is_an_aggregate_of_the_steps_rewards(aggregate: str, expected: float) -> None:
    found = score(process(aggregate=aggregate), "1\nnone\nno\n4\n")
    assert found.reward == expected
    assert found.parts == {"process": expected}
    assert [(step.end, step.reward) for step in found.steps] == [(2, 1.0), (7, 0.0), (10, 0.0), (12, 1.0)]


def test_each_step_is_explained_with_its_text_and_reward() -> None:
    found = score(process(), "1\nnone\nno\n4\n").explanations["process"]
    assert [(one.label, one.got, one.score, one.passed) for one in found] == [
        ("step 1 of 4", "1", 1.0, True),
        ("step 2 of 4", "none", 0.0, False),
        ("step 3 of 4", "no", 0.0, False),
        ("step 4 of 4", "4", 1.0, True),
    ]


def test_of_many_steps_the_lowest_are_explained() -> None:
    found = score(process(), "1\n" * 40 + "no\n").explanations["process"]
    assert len(found) == 12
    assert [one.label for one in found if not one.passed] == ["step 41 of 41", "30 more"]


def test_a_product_multiplies() -> None:
    length = {"type": "length", "mode": "linear", "unit": "characters", "target": 0, "maximum": 4}
    found = score(process(grader=length, aggregate="product"), "a\nbb\nccc")
    assert [step.reward for step in found.steps] == [-0.25, -0.5, -0.75]
    assert found.reward == pytest.approx(-0.09375)


def test_the_inner_grader_sees_the_step_as_output_and_the_whole_row() -> None:
    inner = {
        "type": "string_check",
        "operation": "eq",
        "input": "{{sample.output_text}}/{{sample.finish_reason}}",
        "reference": "{{item.answer}}/stop",
    }
    found = score(process(grader=inner), "b\n a \nc", {"answer": "a"})
    assert [step.reward for step in found.steps] == [0.0, 1.0, 0.0]


def test_a_step_that_cannot_be_scored_makes_the_completion_unscorable_and_is_named() -> None:
    inner = {
        "type": "string_check",
        "operation": "eq",
        "input": "{{sample.output_json.x}}",
        "reference": "1",
    }
    found = score(process(grader=inner), '{"x":1}\noops')
    assert found.reward is None
    assert found.steps == ()
    assert found.errors["process"].code == "sample_parse_error"
    assert found.errors["process"].message == "step 2 of 2: sample.output_json.x: the output is not JSON"


@pytest.mark.parametrize(
    ("fields", "text", "message"),
    [
        ({}, " \n ", "the completion has no steps"),
        ({}, "", "the completion has no steps"),
        ({"splitter": "steps"}, "no step here", "the completion has no steps"),
        ({"max_steps": 2}, "1\n2\n3", "the completion has more than 2 steps"),
        ({}, "1" * 500_001, "longer than 500000 characters: not split into steps"),
    ],
)
def test_a_completion_without_a_usable_number_of_steps_is_unscorable(
    fields: dict[str, Any], text: str, message: str
) -> None:
    found = score(process(**fields), text)
    assert found.reward is None
    assert found.errors["process"].message == message


def test_as_many_steps_as_allowed_are_scored() -> None:
    assert len(score(process(max_steps=3), "1\n2\n\n3\n\n").steps) == 3


def test_feedback_names_the_first_step_with_the_lowest_reward() -> None:
    assert score(process(), "1\nnone\nno").feedback == 'step 2 of 3 has the lowest reward, 0: "none"'
    assert score(process(), "1\n2").feedback == ""
    inner = {"type": "numeric", "reference": "{{item.answer}}"}
    found = score(process(grader=inner), "5\n4", {"answer": 5})
    assert found.feedback == "step 2 of 2 has the lowest reward, 0: expected 5, found 4"


@pytest.mark.parametrize("last_line", ["return 1.0", "raise ValueError(1)"])
def test_what_a_python_grader_prints_at_each_step_is_kept(last_line: str) -> None:
    source = f"""
def grade(sample, item):
    print("seen", sample["output_text"])
    if sample["output_text"] == "a":
        return 1.0
    {last_line}
"""
    found = score(process(grader={"type": "python", "source": source}), "a\nb")
    assert found.printed == {"process": "seen a\nseen b"}


@pytest.mark.parametrize(
    ("fields", "place", "complaint"),
    [
        ({"splitter": "("}, ("splitter",), "not an RE2 pattern"),
        ({"splitter": ""}, ("splitter",), "give lines, paragraphs, steps or a pattern"),
        ({"grader": process()}, ("grader",), "'process' found using 'type'"),
        ({"grader": {"type": "environment"}}, ("grader",), "an environment rewards whole completions"),
        (
            {"grader": {"type": "length", "mode": "linear", "target": 1, "maximum": 9}},
            ("grader",),
            "use the unit characters",
        ),
        ({"max_steps": 0}, ("max_steps",), "greater than or equal to 1"),
        ({"aggregate": "sum"}, ("aggregate",), "'mean'"),
    ],
)
def test_a_wrong_process_grader_is_refused(
    fields: dict[str, Any], place: tuple[str, ...], complaint: str
) -> None:
    found, message = refusal(**process(**fields))
    assert found == ("process", *place)
    assert complaint in message


def test_a_row_is_checked_for_the_inner_grader() -> None:
    grader = read(**process(grader={"type": "numeric", "reference": "{{item.answer}}"}, name="steps"))
    assert grader.problems({}) == ["{{item.answer}} does not resolve"]
    assert grader.problems({"answer": "none"}) == ["reference has no number: 'none'"]
    assert part_names(grader) == ["steps"]
    assert read(**grader.model_dump()) == grader


def test_it_runs_where_its_inner_grader_runs() -> None:
    grader = read(**process(grader={"type": "math", "reference": "{{item.answer}}"}))
    assert grader.execution == "process"
    sample, item = make_sample("$2/4$\n3\n0.5"), {"answer": "$0.5$"}
    with Grading(grader, processes=1) as grading:
        found = grading.submit(sample, item).result(timeout=60)
    assert found == grader.grade(sample, item)
    assert [step.reward for step in found.steps] == [1.0, 0.0, 1.0]


def test_a_quick_grader_for_a_thousand_steps_can_be_stopped() -> None:
    text = " ".join(f"w{n}" for n in range(9000))
    slow = {
        "type": "text_similarity",
        "input": "{{item.text}}",
        "reference": "x",
        "evaluation_metric": "bleu",
    }
    grader = read(**process(grader=slow, max_steps=1024))
    with Grading(grader, processes=1, deadline_seconds=1.0) as grading:
        found = grading.submit(make_sample("a\n" * 1000), {"text": text}).result(timeout=60)
    assert found.reward is None
    assert "no answer within 1" in next(iter(found.errors.values())).message


def test_it_may_be_a_part_of_a_multi() -> None:
    graders = {"steps": process(), "last": {"type": "numeric", "reference": "{{item.answer}}"}}
    found = score(
        {"type": "multi", "graders": graders, "calculate_output": "steps + last"}, "a\n7", {"answer": 7}
    )
    assert (found.reward, found.parts) == (1.5, {"steps": 0.5, "last": 1.0})
    assert found.feedback == 'steps: step 1 of 2 has the lowest reward, 0: "a"'
    broken = score({"type": "multi", "graders": graders, "calculate_output": "steps"}, "", {"answer": 7})
    assert broken.errors["steps"].message == "the completion has no steps"
