"""Training-free GRPO on a scripted endpoint: lessons, events, costs and results."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.job import RunConfig
from grpo_engine.contract.events import (
    CheckpointSaved,
    Evaluated,
    RolloutsRecorded,
    Started,
    StepFinished,
    StepSkipped,
    Warned,
)
from grpo_engine.run.build import build_loop
from grpo_engine.training_free.prompts import COMPARE, CONSOLIDATE
from tests.engine.conftest import write_rows
from tests.engine.training_free.runs import artifact, of, run
from tests.support.capable_model import KEY, LESSON, CapableModel, zorb_rows

Make = Callable[..., RunConfig]


def test_the_lesson_of_the_winners_comes_into_the_prompt_and_held_out_answers_become_right(
    make_job: Make, serve: Any, tmp_path: Path
) -> None:
    serve(CapableModel())
    events = run(make_job(), tmp_path)
    before, after = of(events, Evaluated)
    assert (before.step, before.metrics["reward"]) == (0, 0.0)
    assert (after.step, after.metrics["reward"], after.is_final) == (4, 1.0, True)
    assert after.verdict.text.startswith("+1.000 (")
    folder = artifact(events, tmp_path)
    (lesson,) = json.loads((folder / "experiences.json").read_text())
    assert (lesson["id"], lesson["text"], lesson["created_step"]) == ("G0", LESSON, 1)
    prompt = (folder / "prompt.txt").read_text()
    assert f"[G0] {LESSON}" in prompt
    example = json.loads((folder / "prompt.json").read_text())["example"]["messages"]
    assert example == [{"role": "user", "content": f"{prompt}\n\nWhat is zorb(2, 2)?"}]


def test_metrics_hold_rewards_the_library_and_the_cost_of_reflection(
    make_job: Make, serve: Any, tmp_path: Path
) -> None:
    model = CapableModel()
    serve(model, usd_per_million_input=1.0, usd_per_million_output=2.0)
    events = run(make_job(max_cost_usd=1.0), tmp_path)
    (first,) = of(events, StepFinished)
    assert first.step == 1
    expected = {
        "reward": 0.25,
        "pass_at_1": 0.25,
        "pass_at_group": 1.0,
        "frac_reward_zero_std": 0.0,
        "experiences/count": 1.0,
        "experiences/added": 1.0,
        "experiences/modified": 0.0,
        "experiences/deleted": 0.0,
        "reflection/calls": 16 + 4 + 1.0,
        "reflection/errors": 0.0,
        "endpoint/calls": 12 + 16 + 21.0,
    }
    assert {name: first.metrics[name] for name in expected} == expected
    assert first.metrics["reflection/tokens"] > 100
    assert 0 < first.metrics["endpoint/cost_usd"] < 0.1
    assert first.metrics["completions/mean_length"] > 1
    later = of(events, StepSkipped)
    assert [event.step for event in later] == [2, 3, 4]
    assert [event.metrics["reward"] for event in later] == [1.0, 1.0, 1.0]
    assert model.asked == {"attempt": 12 + 4 * 16 + 12, "summarise": 16, "compare": 4, "consolidate": 1}


def test_attempts_are_recorded_with_the_prompt_as_it_was_sent(
    make_job: Make, serve: Any, tmp_path: Path
) -> None:
    serve(CapableModel())
    events = run(make_job(), tmp_path)
    recorded = {event.step: event.groups for event in of(events, RolloutsRecorded) if event.split == "train"}
    assert LESSON not in recorded[1][0].prompt
    assert LESSON in recorded[2][0].prompt
    advantages = sorted(completion.advantage for completion in recorded[1][0].completions)
    assert advantages == pytest.approx([-0.4999, -0.4999, -0.4999, 1.4997], abs=1e-3)
    assert {completion.policy_version for completion in recorded[2][0].completions} == {1}
    assert recorded[2][0].has_signal is False


def test_a_system_message_takes_the_library_in_front_of_its_own_text(
    make_job: Make, serve: Any, tmp_path: Path
) -> None:
    server = serve(CapableModel())
    config = make_job()
    system = {"role": "system", "content": "Answer in one line."}
    rows = [{**row, "messages": [system, *row["messages"]]} for row in zorb_rows(8)]
    write_rows(Path(config.training_file), rows)
    run(config, tmp_path)
    asked = [request.json["messages"] for request in server.requests]
    with_library = [m for m in asked if len(m) == 2 and m[0]["content"].endswith("\n\nAnswer in one line.")]
    assert len(with_library) == 3 * 16
    assert all(LESSON in messages[0]["content"] for messages in with_library)
    assert all(LESSON not in messages[1]["content"] for messages in with_library)


def test_no_event_and_no_file_holds_the_operators_key_or_address(
    make_job: Make, serve: Any, tmp_path: Path
) -> None:
    server = serve(CapableModel())
    events = run(make_job(), tmp_path / "run")
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    reported = "".join(event.model_dump_json() for event in events)
    reported += "".join(path.read_text() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert KEY not in reported
    assert server.host not in reported


def test_a_resumed_run_ends_with_the_same_library_and_repeats_no_call_of_a_finished_step(
    make_job: Make, serve: Any, tmp_path: Path
) -> None:
    config = make_job(max_calls=500)
    whole = CapableModel()
    serve(whole)
    expected = run(config, tmp_path / "whole")
    parts = CapableModel()
    serve(parts)
    stops = iter([False, True])
    first = list(build_loop(config, tmp_path / "parts").run(lambda: next(stops)))
    assert [event.step for event in of(first, CheckpointSaved)] == [1]
    second = run(config, tmp_path / "parts")
    assert of(second, Started)[0].resumed_from_step == 1
    assert parts.asked == whole.asked
    for name in ("experiences.json", "prompt.txt", "prompt.json"):
        left = artifact(expected, tmp_path / "whole") / name
        assert (artifact(second, tmp_path / "parts") / name).read_bytes() == left.read_bytes()
    last = of(second, StepSkipped)[-1].metrics
    assert last["endpoint/calls"] == of(expected, StepSkipped)[-1].metrics["endpoint/calls"]
    assert of(second, Evaluated)[-1].verdict == of(expected, Evaluated)[-1].verdict


def test_an_unreadable_proposal_is_requested_once_more_then_dropped_and_counted(
    make_job: Make, serve: Any, tmp_path: Path
) -> None:
    model = CapableModel()
    asked: list[Mapping[str, Any]] = []

    def answer(request: dict[str, Any]) -> Any:
        if request["messages"][0]["content"] == COMPARE and "zorb(2, 2)" in request["messages"][1]["content"]:
            asked.append(request)
            return "I would rather write a poem."
        return model(request)

    serve(answer)
    events = run(make_job(num_rows=4, n_epochs=1), tmp_path)
    (step,) = of(events, StepFinished)
    assert len(asked) == 2
    assert asked[1]["messages"][2] == {"role": "assistant", "content": "I would rather write a poem."}
    assert "not a JSON object" in asked[1]["messages"][3]["content"]
    assert (step.metrics["reflection/errors"], step.metrics["reflection/dropped"]) == (2.0, 1.0)
    assert step.metrics["experiences/count"] == 1.0
    (warning,) = of(events, Warned)
    assert warning.code == "reflection_errors"
    assert warning.message.count("not a JSON object") == 1


def test_without_a_readable_consolidation_the_proposals_count_as_they_came(
    make_job: Make, serve: Any, tmp_path: Path
) -> None:
    model = CapableModel()
    serve(lambda request: "?" if request["messages"][0]["content"] == CONSOLIDATE else model(request))
    (step,) = of(run(make_job(num_rows=4, n_epochs=1), tmp_path), StepFinished)
    assert (step.metrics["experiences/count"], step.metrics["experiences/ignored"]) == (1.0, 3.0)
    assert step.metrics["reflection/errors"] == 2.0


def test_operations_on_unknown_ids_are_ignored_and_counted(
    make_job: Make, serve: Any, tmp_path: Path
) -> None:
    model = CapableModel()
    wild = {
        "operations": [{"operation": "delete", "id": "G7"}, {"operation": "modify", "id": "x", "text": "y"}]
    }
    serve(lambda request: wild if request["messages"][0]["content"] == CONSOLIDATE else model(request))
    (step,) = of(run(make_job(num_rows=4, n_epochs=1), tmp_path), StepFinished)
    assert (step.metrics["experiences/ignored"], step.metrics["experiences/count"]) == (2.0, 0.0)


def test_without_a_lesson_the_prompt_is_unchanged_and_the_run_warns(
    make_job: Make, serve: Any, tmp_path: Path
) -> None:
    model = CapableModel(lucky_every=10**6)
    serve(model)
    events = run(make_job(n_epochs=1), tmp_path)
    assert [event.step for event in of(events, StepSkipped)] == [1, 2]
    assert of(events, Warned)[-1].code == "no_experiences"
    assert (artifact(events, tmp_path) / "prompt.txt").read_text() == ""
    assert model.asked["summarise"] == 0
