"""What holds for every kind of grader."""

import json
import math
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_engine.config.job import RunConfig
from grpo_engine.contract.records import FinishReason
from grpo_engine.graders import make_sample, part_names
from grpo_engine.graders.base import Graded, RewardGrader
from tests.engine.graders.helpers import ADAPTER, EXAMPLES, read, refusal

GRADERS = {name: ADAPTER.validate_python(data) for name, data in EXAMPLES.items()}
everywhere = pytest.mark.parametrize("name", EXAMPLES)


@everywhere
def test_a_dumped_grader_reads_back_equal(name: str) -> None:
    grader = GRADERS[name]
    assert ADAPTER.validate_python(grader.model_dump()) == grader
    assert ADAPTER.validate_json(grader.model_dump_json()) == grader


@everywhere
def test_a_grader_travels_to_another_process(name: str) -> None:
    grader, sample = GRADERS[name], make_sample('<answer>5</answer>{"x":1}', num_tokens=3)
    before = grader.grade(sample, {"answer": 5})
    copied = pickle.loads(pickle.dumps(grader))
    assert copied == grader
    assert copied.grade(sample, {"answer": 5}) == before


@everywhere
def test_a_run_configuration_with_it_round_trips(name: str) -> None:
    config = RunConfig.model_validate(
        {
            "job_id": "ftjob-1",
            "model": {"name": "tiny", "path": "/models/tiny"},
            "training_file": "rows.jsonl",
            "method": {"type": "reinforcement", "reinforcement": {"grader": EXAMPLES[name]}},
        }
    )
    assert RunConfig.model_validate_json(config.model_dump_json()) == config
    assert config.method.type == "reinforcement"
    assert config.method.reinforcement.grader == GRADERS[name]


@everywhere
@given(text=st.text(), answer=st.none() | st.integers() | st.text() | st.floats())
def test_grading_never_raises_and_never_gives_a_reward_that_is_not_finite(
    name: str, text: str, answer: Any
) -> None:
    grader = GRADERS[name]
    score = grader.grade(make_sample(text, num_tokens=len(text)), {"answer": answer})
    assert list(score.parts) == part_names(grader)
    assert score.reward is None or math.isfinite(score.reward)
    assert score.reward is not None or score.errors


def test_an_unknown_kind_and_an_unknown_field_are_refused() -> None:
    assert "does not match any of the expected tags: 'string_check'" in refusal(type="vibes")[1]
    assert refusal(reference="1")[1].startswith("Unable to extract tag using discriminator 'type'")
    assert refusal(**EXAMPLES["numeric"], tolerance=1)[0] == ("numeric", "tolerance")


def test_a_name_with_a_line_break_is_refused() -> None:
    assert refusal(**EXAMPLES["numeric"], name="a\nb")[0] == ("numeric", "name")


class Constant(RewardGrader):
    given: float

    def evaluate(self, sample: Any, item: Any) -> Graded:
        return Graded(self.given)


@pytest.mark.parametrize("reward", [math.inf, -math.inf, math.nan, 1.1e15, -1e300])
def test_a_reward_that_is_infinite_or_too_large_is_unscorable(reward: float) -> None:
    score = Constant.model_construct(name="x", given=reward).grade(make_sample(""), {})
    assert score.reward is None
    assert score.errors["x"].message == f"the reward is {reward}, not a finite number up to 1e+15"


def test_the_largest_reward_is_a_reward() -> None:
    assert Constant(name="x", given=-1e15).grade(make_sample(""), {}).reward == -1e15


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": [1, 2.5]}', {"a": [1, 2.5]}),
        (" 3\n", 3),
        ("text", None),
        ("{", None),
        ("NaN", None),
        ("[1e999]", None),
        ("[" * 100_000, None),
        ("[" * 300 + "]" * 300, None),
        ("9" * 5000, None),
    ],
)
def test_a_samples_text_is_parsed_if_it_is_json(text: str, expected: Any) -> None:
    assert make_sample(text).output_json == expected


def test_a_sample_keeps_its_text_length_and_finish_reason() -> None:
    sample = make_sample("a\ud800b", num_tokens=7, finish_reason=FinishReason.LENGTH)
    assert (sample.output_text, sample.num_tokens, sample.finish_reason) == ("a?b", 7, "length")


@given(st.recursive(st.integers() | st.text(), lambda inner: st.lists(inner), max_leaves=5))
def test_any_json_output_is_parsed(value: Any) -> None:
    assert make_sample(json.dumps(value)).output_json == value


def test_a_base_class_cannot_be_used() -> None:
    with pytest.raises(TypeError, match="abstract"):
        RewardGrader()  # type: ignore[abstract]
    assert read(**EXAMPLES["linear"]).templates() == {}
