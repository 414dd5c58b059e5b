"""Training-free GRPO with the job's own model, and a run that is killed."""

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from grpo_engine.config.job import ModelSource, RunConfig
from grpo_engine.contract import manifest
from grpo_engine.contract.errors import DatasetError
from grpo_engine.contract.events import (
    Evaluated,
    RolloutsRecorded,
    Started,
    StepFinished,
    Warned,
    parse_event,
)
from grpo_engine.run.build import build_loop
from grpo_engine.training_free.prompts import COMPARE, CONSOLIDATE, retry_messages
from tests.engine.conftest import DIGITS, sum_rows, write_rows
from tests.engine.processes import run_here, start
from tests.engine.training_free.runs import of, run
from tests.support.capable_model import (
    GRADER,
    LESSON,
    MODEL,
    CapableModel,
    on_endpoint,
    write_endpoints,
    zorb_rows,
)
from tests.support.chat_server import ChatServer

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hi."}]
ADVICE = "Write a digit, and say it twice. " * 8


def adviser(request: dict[str, Any]) -> Any:
    """Reflects without looking: every group adds one lesson of its own."""
    role, text = request["messages"][0]["content"], request["messages"][1]["content"]
    if role == COMPARE:
        task = text.split("\n")[1]
        return {"operations": [{"operation": "add", "text": f"For {task} {ADVICE}"}]}
    if role == CONSOLIDATE:
        lines = text.split("<proposals>\n")[1].split("\n</proposals>")[0].splitlines()
        return {"operations": [each for line in lines for each in json.loads(line)]}
    return "It tried."


@pytest.fixture
def make_job(tmp_path: Path, model_folder: Callable[[str], Path]) -> Callable[..., RunConfig]:
    """A job whose own tiny model makes the attempts; keyword arguments are hyperparameters."""

    def make(**hyperparameters: Any) -> RunConfig:
        small = {"n_epochs": 1, "prompts_per_step": 4, "group_size": 4, "max_completion_tokens": 8}
        settings = {**small, "reflection": {"endpoint": "helper", "model": MODEL}, **hyperparameters}
        return RunConfig.model_validate(
            {
                "job_id": "ftjob-test",
                "seed": 7,
                "model": {"name": "qwen3", "path": str(model_folder("qwen3"))},
                "training_file": str(write_rows(tmp_path / "train.jsonl", sum_rows(8))),
                "validation_file": str(write_rows(tmp_path / "held.jsonl", sum_rows(4))),
                "method": {
                    "type": "training_free",
                    "training_free": {"grader": DIGITS, "hyperparameters": settings},
                },
            }
        )

    return make


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with ChatServer(adviser) as server:
        monkeypatch.setenv("GRPO_ENDPOINTS", str(write_endpoints(tmp_path / "endpoints.json", server.url)))
        yield server


def test_the_jobs_own_model_attempts_with_the_library_in_its_chat_template(
    make_job: Callable[..., RunConfig], helper: ChatServer, tmp_path: Path
) -> None:
    events = run(make_job(max_experience_chars=60), tmp_path)
    started = of(events, Started)[0]
    assert (started.sampler, started.num_trainable_parameters) == ("torch", 0)
    assert started.num_parameters > 10_000
    recorded = {e.step: e.groups for e in of(events, RolloutsRecorded) if e.split == "train"}
    assert "[G0] For " not in recorded[1][0].prompt
    assert "[G0] For " in recorded[2][0].prompt
    assert len(recorded[1][0].completions[0].token_ids) > 0
    assert of(events, Evaluated)[0].metrics["experiences/count"] == 0.0
    assert of(events, StepFinished)[0].metrics["experiences/added"] >= 1
    again = run(make_job(max_experience_chars=60), tmp_path / "again")
    texts = [[c.text for g in e.groups for c in g.completions] for e in of(events, RolloutsRecorded)]
    repeated = [[c.text for g in e.groups for c in g.completions] for e in of(again, RolloutsRecorded)]
    assert repeated == texts


def test_lessons_that_do_not_fit_the_context_are_left_out_with_a_warning(
    make_job: Callable[..., RunConfig], helper: ChatServer, tmp_path: Path
) -> None:
    config = make_job(max_experience_chars=300, max_completion_tokens=16, n_epochs=3, eval_interval=1)
    events = run(config, tmp_path)
    counted = [step.metrics for step in of(events, StepFinished)]
    left_out = [metrics["experiences/left_out"] for metrics in counted]
    assert left_out[0] == 0.0
    assert 1 <= left_out[-1] < counted[-1]["experiences/count"]
    (warning,) = [event for event in of(events, Warned) if event.code == "experiences_left_out"]
    assert "lower max_experiences" in warning.message


def test_a_model_that_cannot_reflect_learns_nothing_but_the_job_ends_well(
    make_job: Callable[..., RunConfig], tmp_path: Path
) -> None:
    events = run(make_job(reflection="model", reflection_max_tokens=16), tmp_path)
    finished = [event for event in of(events, StepFinished) if event.metrics["reflection/calls"]]
    assert finished[0].metrics["reflection/errors"] >= 1
    assert finished[0].metrics["experiences/count"] == 0.0
    errors, nothing = of(events, Warned)
    assert (errors.code, nothing.code) == ("reflection_errors", "no_experiences")
    assert "or the reflecting model wrote no lesson that can be used" in nothing.message


def test_a_model_whose_template_refuses_system_messages_reflects(
    make_job: Callable[..., RunConfig], model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(model_folder("qwen3"), tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    refusal = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    tokenizer.chat_template = refusal + tokenizer.chat_template
    tokenizer.save_pretrained(folder)
    job = make_job(reflection="model", reflection_max_tokens=16)
    job = job.model_copy(update={"model": ModelSource(name="qwen3", path=str(folder))})
    client = build_loop(job, tmp_path).method.resources.reflecting
    (prompt,) = client._prompts([{"messages": retry_messages(CHAT, "{", "it is not JSON")}])
    assert prompt.text.startswith("<|user|>Be brief.\n\nSay hi.<|assistant|>{<|end|><|user|>That answer")
    assert of(run(job, tmp_path), StepFinished)[0].metrics["reflection/calls"] > 0


def test_a_row_that_leaves_the_model_no_room_is_refused_before_anything_runs(
    make_job: Callable[..., RunConfig], helper: ChatServer, tmp_path: Path
) -> None:
    with pytest.raises(DatasetError, match="row 1: the prompt and max_completion_tokens 1000"):
        build_loop(make_job(max_completion_tokens=1000), tmp_path)


@pytest.mark.parametrize("long", [0, 4, 7])
def test_a_row_that_is_too_long_is_named_by_its_line_beside_rows_that_are_held_out(
    make_job: Callable[..., RunConfig], helper: ChatServer, tmp_path: Path, long: int
) -> None:
    job = make_job().model_copy(update={"validation_file": None, "validation_split": 3})
    rows = sum_rows(8)
    rows[long]["messages"][0]["content"] *= 200
    write_rows(tmp_path / "train.jsonl", rows)
    with pytest.raises(DatasetError, match=f"row {long + 1}: the prompt and max_completion_tokens 8"):
        build_loop(job, tmp_path)


class Blocking:
    """A capable model that falls silent in the second step, until it is released."""

    def __init__(self) -> None:
        self.model = CapableModel()
        self.reached, self.release = threading.Event(), threading.Event()

    def __call__(self, request: dict[str, Any]) -> Any:
        is_later = any(LESSON in message["content"] for message in request["messages"])
        if is_later and not self.release.is_set() and request["messages"][0]["role"] == "user":
            self.reached.set()
            self.release.wait(60)
        return self.model(request)


@pytest.mark.slow
def test_a_killed_run_continues_from_its_library_without_repeating_finished_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocking = Blocking()
    method = {"grader": GRADER, "hyperparameters": on_endpoint(n_steps=3, n_epochs="auto")}
    rows = write_rows(tmp_path / "train.jsonl", zorb_rows(4))
    config = {
        "job_id": "ftjob-killed",
        "seed": 3,
        "model": {"name": "none", "path": "/none"},
        "training_file": str(rows),
        "validation_file": str(rows),
        "method": {"type": "training_free", "training_free": method},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    with ChatServer(blocking) as server:
        monkeypatch.setenv("GRPO_ENDPOINTS", str(write_endpoints(tmp_path / "endpoints.json", server.url)))
        first = start(tmp_path / "config.json", tmp_path / "run")
        try:
            assert blocking.reached.wait(60)
        finally:
            first.kill()  # SIGKILL
            first.wait()
        before = dict(blocking.model.asked)
        blocking.release.set()
        run_here(RunConfig.model_validate(config), tmp_path / "run")
    assert before["summarise"] == blocking.model.asked["summarise"] == 16
    lines = (tmp_path / "run" / "events.jsonl").read_bytes().splitlines()
    events = [parse_event(line) for line in lines]
    assert [event.resumed_from_step for event in of(events, Started)] == [0, 1]
    assert [event.metrics["reward"] for event in of(events, Evaluated)] == [0.0, 1.0]
    last = tmp_path / "run" / "checkpoints" / "step-00000003"
    found = manifest.verify(last, "ftjob-killed")
    assert "experiences/experiences.json" in found["files"]
    (lesson,) = json.loads((last / "experiences" / "experiences.json").read_text())
    assert lesson["text"] == LESSON
