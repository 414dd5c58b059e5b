"""Grading that cannot hang, with real grading processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.contract.records import Score
from grpo_engine.graders import make_sample
from grpo_engine.graders.pool import executors
from grpo_engine.graders.pool.pool import Grading
from grpo_engine.graders.pool.server import MAX_MEMORY_BYTES
from tests.engine.graders.helpers import has_ended, read

MATH = {"type": "math", "reference": "{{item.answer}}"}
ENDLESS = "$9^{9^{9^9}}$"
HOSTILE = (sys.executable, str(Path(__file__).with_name("hostile_server.py")))
SOON = 60.0
"""Seconds within which a thing happens that does not wait for a long deadline."""


def hostile(*start: str, processes: int = 1, deadline_seconds: float = SOON) -> Grading:
    """Grading whose processes follow the order in the completion."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executors, "grading_command", lambda graders: [*HOSTILE, *start])
        return Grading(read(**MATH), processes=processes, deadline_seconds=deadline_seconds)


def scores(grading: Grading, texts: Sequence[str], answer: Any = "$1$") -> list[Score]:
    futures = [grading.submit(make_sample(text), {"answer": answer}) for text in texts]
    return [future.result(timeout=120) for future in futures]


def reason(score: Score) -> tuple[str, str]:
    assert score.reward is None
    assert score.parts == {"math": None}
    return score.errors["math"].code, score.errors["math"].message


def test_an_inline_grader_runs_at_once_without_a_process() -> None:
    grader = read(type="numeric", reference="{{item.answer}}")
    with Grading(grader) as grading:
        future = grading.submit(make_sample("so 7"), {"answer": 7})
        assert future.done()
        assert future.result() == grader.grade(make_sample("so 7"), {"answer": 7})
        assert grading.pids == []


def test_a_grading_process_has_little_memory_and_gives_the_same_score_as_this_one() -> None:
    grader = read(**MATH, name="right")
    texts = ["$\\frac{1}{2}$", "so 0.5", "0.6", "", "\ud800 \\boxed{1/2}"]
    with Grading(grader, processes=1) as grading:
        found = scores(grading, texts, "$0.5$")
        limits = Path(f"/proc/{grading.pids[0]}/limits").read_text().splitlines()
    soft = {line[:26].strip(): line[26:].split()[0] for line in limits}
    assert soft["Max address space"] == str(MAX_MEMORY_BYTES)
    assert soft["Max core file size"] == "0"
    assert found == [grader.grade(make_sample(text), {"answer": "$0.5$"}) for text in texts]
    assert [score.reward for score in found] == [1.0, 1.0, 0.0, 0.0, 1.0]


def test_a_grader_that_hangs_is_killed_at_the_deadline_and_the_others_scored() -> None:
    with hostile(processes=2, deadline_seconds=4.0) as grading:
        found = scores(grading, ["good", "hang", "good", "hang", "good", "good"])
    assert [score.reward for score in found] == [1.0, None, 1.0, None, 1.0, 1.0]
    assert reason(found[1]) == ("unresponsive_reward_error", "no answer within 4 seconds")


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("die", "the grading process ended (exit code 3)"),
        ("flood", "the grading process answered more than 1048576 bytes (killed by signal 9)"),
        ("garbage", "the grading process did not answer with an object (killed by signal 9)"),
        ("another id", "the grading process answered another request (killed by signal 9)"),
        ("twice", "the grading process did not answer with JSON (killed by signal 9)"),
        ("no score", "the grading process returned no score"),
    ],
)
def test_a_broken_process_costs_one_completion_only(order: str, message: str) -> None:
    with hostile() as grading:
        before, broken, after, more = scores(grading, ["good", order, "good", "good"])
    assert reason(broken) == ("other_error", message)
    assert [before.reward, after.reward, more.reward] == [1.0, 1.0, 1.0]
    assert (before.feedback == after.feedback) is (order == "no score")
    assert after.feedback == more.feedback


def test_output_without_a_request_is_never_an_answer() -> None:
    with hostile() as grading:
        found = [score.reward for score in scores(grading, ["afterwards", "good", "good"])]
    assert 0.0 not in found
    assert found[2] == 1.0


def test_descendants_of_a_hanging_process_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with hostile(deadline_seconds=2.0) as grading:
        (found,) = scores(grading, ["hang with a child"])
    assert reason(found)[0] == "unresponsive_reward_error"
    assert has_ended(int((tmp_path / "grandchild").read_text()))


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ("die", "the grading process ended (exit code 5)"),
        ("refuse", "the grading process could not start: no such rule"),
    ],
)
def test_a_process_that_does_not_start_makes_completions_unscorable(start: str, message: str) -> None:
    with hostile(start) as grading:
        for score in scores(grading, ["good", "good"]):
            code, found = reason(score)
            assert code == "other_error"
            assert found.startswith(message)


def test_a_command_that_does_not_exist_makes_completions_unscorable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "grading_command", lambda graders: ["/no/such/program"])
    with Grading(read(**MATH)) as grading:
        (score,) = scores(grading, ["$1$"])
    assert reason(score) == (
        "other_error",
        "no grading process could be started: No such file or directory",
    )


def test_a_process_that_died_between_two_completions_costs_none() -> None:
    with hostile() as grading:
        (first,) = scores(grading, ["good"])
        (pid,) = grading.pids
        os.kill(pid, signal.SIGKILL)
        assert has_ended(pid)
        (second,) = scores(grading, ["good"])
    assert (first.reward, second.reward) == (1.0, 1.0)
    assert first.feedback == str(pid) != second.feedback


def test_a_row_that_is_not_json_costs_its_own_completion_only() -> None:
    with hostile() as grading:
        (broken,) = scores(grading, ["good"], answer=object())
        (good,) = scores(grading, ["good"])
    assert reason(broken) == ("other_error", "the completion or its row has no JSON form")
    assert good.reward == 1.0


def test_a_process_sees_no_secret_and_no_file_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_SECRET", "hunter2")
    with open(__file__) as _, hostile() as grading:
        (score,) = scores(grading, ["environment"])
    seen = json.loads(score.feedback)
    assert "GRPO_SECRET" not in seen["names"]
    assert "PATH" in seen["names"]
    # Standard input, output and error, and the folder that is being listed.
    assert len(seen["descriptors"]) == 4
    assert seen["session"] is True


def test_two_thousand_completions_share_a_few_processes() -> None:
    with hostile(processes=2) as grading:
        start = time.monotonic()
        futures = [grading.submit(make_sample("good"), {}) for _ in range(2000)]
        assert time.monotonic() - start < SOON
        used = {future.result(timeout=120).feedback for future in futures}
        assert len(grading.pids) == len(used) == 2


def test_one_completion_at_a_time_needs_one_process() -> None:
    with hostile(processes=4) as grading:
        used = {scores(grading, ["good"])[0].feedback for _ in range(8)}
    assert len(used) == 1


def test_scores_do_not_depend_on_the_number_of_processes() -> None:
    texts = [f"$x^{n} = {n % 3} + y$ or \\boxed{{\\{{{n}, 2, 3\\}}}}" for n in range(6)] + [
        "",
        "$",
        "{" * 50,
    ]
    found = []
    for processes in (1, 2):
        with Grading(read(**MATH), processes=processes) as grading:
            found.append(scores(grading, texts, "$\\{3, 2, 1\\}$"))
    assert found[0] == found[1]
    assert [n for n, score in enumerate(found[0]) if score.reward == 1.0] == [1]


def test_close_kills_what_runs_cancels_what_waits_and_leaves_no_process() -> None:
    grading = hostile(processes=2, deadline_seconds=3600.0)
    scores(grading, ["good"])
    futures = [grading.submit(make_sample(text), {}) for text in ["hang", "hang", "good", "good"]]
    running = grading.pids
    start = time.monotonic()
    grading.close()
    assert time.monotonic() - start < SOON
    for future in futures:
        with pytest.raises(CancelledError):
            future.result(timeout=SOON)
    assert running
    assert not any(Path(f"/proc/{pid}").exists() for pid in running)
    assert grading.pids == []
    with pytest.raises(RuntimeError, match="grading is closed"):
        grading.submit(make_sample(""), {})
    grading.close()


def test_grading_processes_die_with_a_parent_that_is_killed() -> None:
    program = (
        "import sys\n"
        "from tests.engine.graders.helpers import read\n"
        "from grpo_engine.graders import make_sample\n"
        "from grpo_engine.graders.pool.pool import Grading\n"
        f"grading = Grading(read(**{MATH!r}), processes=1, deadline_seconds=3600)\n"
        "grading.submit(make_sample('$1$'), {'answer': '$1$'}).result()\n"
        f"waiting = grading.submit(make_sample({ENDLESS!r}), {{'answer': '$1$'}})\n"
        "print(*grading.pids, flush=True)\n"
        "waiting.result()\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[4]) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
    assert has_ended(pid)


def test_cancelling_a_future_affects_no_other() -> None:
    with hostile(deadline_seconds=3) as grading:
        orders = ["hang"] + ["good"] * 18
        futures = [grading.submit(make_sample(order), {}) for order in orders]
        assert futures[-1].cancel()  # the process is busy, so it waits
        assert all(future.result(timeout=SOON).reward == 1.0 for future in futures[1:-1])
        assert scores(grading, ["good"])[0].reward == 1.0
