"""Rules in threads, and the parts of a `multi`, each graded where it belongs."""

import threading
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.graders import make_sample
from grpo_engine.graders.base import Graded, RewardGrader
from grpo_engine.graders.pool.pool import Grading
from tests.engine.graders.helpers import read
from tests.engine.graders.pool.test_pool import ENDLESS, MATH, SOON

CAP_DAC_READ_SEARCH = 1 << 2


class Waiting(RewardGrader):
    """A rule with network time: it waits for an event, without its own timeout."""

    runs_in = "thread"

    type: str = "waiting"

    def evaluate(self, sample: Any, item: Any) -> Graded:
        if sample.output_text == "raise":
            raise ValueError("secret")
        if sample.output_text == "wait":
            item["event"].wait()
        return Graded(0.5)


def test_a_grader_in_a_thread_is_abandoned_at_the_deadline() -> None:
    event = threading.Event()
    with Grading(Waiting(), deadline_seconds=2.0) as grading:  # type: ignore[arg-type]
        late = grading.submit(make_sample("wait"), {"event": event})
        good = grading.submit(make_sample("good"), {})
        assert good.result(timeout=SOON).reward == 0.5
        error = late.result(timeout=SOON).errors["waiting"]
        event.set()
    assert (error.code, error.message) == ("unresponsive_reward_error", "no answer within 2 seconds")


def test_many_graders_wait_for_the_network_at_once() -> None:
    event = threading.Event()
    with Grading(Waiting(), deadline_seconds=SOON) as grading:  # type: ignore[arg-type]
        futures = [grading.submit(make_sample("wait"), {"event": event}) for _ in range(31)]
        assert grading.submit(make_sample("good"), {}).result(timeout=SOON).reward == 0.5
        event.set()
        assert {future.result(timeout=SOON).reward for future in futures} == {0.5}


def test_close_does_not_wait_for_a_grader_in_a_thread() -> None:
    event = threading.Event()
    with Grading(Waiting(), deadline_seconds=3600.0) as grading:  # type: ignore[arg-type]
        future = grading.submit(make_sample("wait"), {"event": event})
    with pytest.raises(CancelledError):
        future.result(timeout=SOON)
    event.set()


def test_a_grader_that_raises_is_unscorable_and_its_message_hidden() -> None:
    with Grading(Waiting()) as grading:  # type: ignore[arg-type]
        error = grading.submit(make_sample("raise"), {}).result(timeout=SOON).errors["waiting"]
    assert error.code == "other_error"
    assert error.message.startswith("the grader failed: ValueError in test_parts.py, line ")


def multi(**more: Any) -> Any:
    graders = {
        "shape": {"type": "format", "tags": ["answer"]},
        "right": {**MATH, "input": "{{sample.output_text}}"},
        "number": {"type": "numeric", "reference": "{{item.answer}}"},
    }
    return read(type="multi", graders=graders, calculate_output="shape + 2*right + 4*number", **more)


def test_the_parts_of_a_multi_run_in_their_executors_and_are_combined() -> None:
    grader = multi(invalid_grade=-1.0)
    assert grader.execution == "process"
    with Grading(grader, processes=1) as grading:
        for text in ("<answer>$2/4$</answer>", "1", "$", "<answer></answer>"):
            for item in ({"answer": "$1/2$"}, {"answer": ""}, {}):
                found = grading.submit(make_sample(text), item).result(timeout=SOON)
                assert found == grader.grade(make_sample(text), item), (text, item)
                assert list(found.parts) == ["shape", "right", "number"]


def test_a_part_that_hangs_is_unscorable_and_the_other_parts_count() -> None:
    with Grading(multi(), deadline_seconds=1.0) as grading:
        found = grading.submit(make_sample(f"<answer>{ENDLESS}</answer>"), {"answer": "9"}).result(timeout=60)
    assert found.reward is None
    assert (found.parts["shape"], found.parts["right"]) == (1.0, None)
    assert found.errors["right"].code == "unresponsive_reward_error"


def test_no_grader_that_parses_completions_runs_as_root() -> None:
    grader = read(type="math", reference="{{item.answer}}")
    with Grading(grader, processes=1) as grading:
        assert grading.submit(make_sample(r"$\frac{2}{4}$"), {"answer": "0.5"}).result().reward == 1.0
        (pid,) = grading.pids
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    assert "0" not in status["Uid"].split()
    writes = int(status["CapEff"], 16) & ~CAP_DAC_READ_SEARCH
    assert writes == 0
