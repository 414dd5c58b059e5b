"""Jobs with tools on three families: a model that seldom calls learns to, in its family's format."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_engine.config.job import ModelSource, RunConfig, SupervisedHyperparameters
from grpo_engine.config.tools import HttpTool, function_schemas
from grpo_engine.contract.events import StepFinished
from grpo_engine.models.loading import load_policy
from grpo_engine.models.policy import Policy
from grpo_engine.objective.packing import TrainingGroup, TrainingSequence, pack
from grpo_engine.rollout.dataset import RowReader
from grpo_engine.rollout.tools.rendering import AnswerRenderer, tool_format
from grpo_engine.run.build import build_loop
from tests.engine.conftest import write_rows
from tests.engine.rollout.tools.families import FAMILIES, make_family_model
from tests.support.chat_server import Recorded, ScriptedServer

QUESTION, RIGHT, WRONG = "6*8", "48", "?"
ROWS = [{"messages": [{"role": "user", "content": QUESTION}], "answer": RIGHT}] * 4
ARGUMENTS = {"a": 6, "b": 8}
TOOL = HttpTool(
    type="http",
    name="multiply",
    parameters={"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    url="https://tool.example",
)
PUPIL_STEPS = 100
CALL_SHARE = 0.3
"""Probability that the pupil calls."""


def supervised_group(policy: Policy, name: str) -> TrainingGroup:
    """The question with a wrong answer and, less likely, a call, its result and the right answer."""
    family, tokenizer = FAMILIES[name], policy.tokenizer
    renderer = AnswerRenderer(policy, tool_format(tokenizer))
    (prompt, *_) = RowReader(tokenizer, tools=function_schemas([TOOL])).prompts(ROWS)

    def ids(text: str) -> list[int]:
        return list(tokenizer(text + family.stops[0], add_special_tokens=False).input_ids)

    call, right, wrong = ids(family.call("multiply", ARGUMENTS)), ids(RIGHT), ids(WRONG)
    result = renderer.render(["multiply"], [RIGHT], last_token=call[-1], room=1000)
    assert result is not None
    trained = [True] * len(call) + [False] * len(result) + [True] * len(right)
    called = _sequence([*call, *result, *right], CALL_SHARE, trained)
    return TrainingGroup(prompt.token_ids, (called, _sequence(wrong, 1 - CALL_SHARE)))


def _sequence(ids: Sequence[int], weight: float, trained: Sequence[bool] = ()) -> TrainingSequence:
    zeros = (0.0,) * len(ids)
    return TrainingSequence(tuple(ids), zeros, zeros, weight, trained=tuple(trained))


def make_pupil(folder: Path, name: str) -> None:
    """Write a model that mostly gives a wrong answer and sometimes calls."""
    call = FAMILIES[name].call("multiply", ARGUMENTS)
    make_family_model(folder, name, texts=[call] * 60, hidden=64)
    full = SupervisedHyperparameters(lora="full")  # type: ignore[call-arg]
    source = ModelSource(name=name, path=str(folder))
    policy = load_policy(source, full, torch.device("cpu"), torch.float32, seed=5)
    (batch,) = pack([supervised_group(policy, name)], 10_000, policy.device)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=PUPIL_STEPS)
    for _ in range(PUPIL_STEPS):
        optimizer.zero_grad()
        logprobs_N, _ = policy.logprobs(batch)
        loss = -(logprobs_N * batch.weights_N).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    policy.model.save_pretrained(folder)


def job(folder: Path, tmp_path: Path, url: str) -> RunConfig:
    grader = {"type": "string_check", "operation": "like"}
    grader |= {"input": "{{sample.output_tools}}", "reference": '"answer":"{{item.answer}}"'}
    hyperparameters: dict[str, Any] = {
        "n_steps": 6,
        "prompts_per_step": 4,
        "group_size": 16,
        "max_completion_tokens": 120,
        "max_turns": 2,
        "learning_rate": 1e-3,
        "beta": 0.0,
        "lora": "full",
    }
    method = {
        "grader": grader,
        "tools": [{**TOOL.model_dump(), "url": url}],
        "hyperparameters": hyperparameters,
    }
    return RunConfig.model_validate(
        {
            "job_id": "ftjob-test",
            "seed": 7,
            "model": {"name": "pupil", "path": str(folder)},
            "training_file": str(write_rows(tmp_path / "train.jsonl", ROWS)),
            "method": {"type": "reinforcement", "reinforcement": method},
        }
    )


@pytest.mark.parametrize("name", ["hermes", "llama", "xml"])
def test_a_model_learns_to_call_in_its_familys_format(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_pupil(tmp_path / "pupil", name)
    with ScriptedServer(_product) as server:
        monkeypatch.setenv("GRPO_ALLOWED_HOSTS", server.host)
        loop = build_loop(job(tmp_path / "pupil", tmp_path, server.url), tmp_path / "run")
        steps = [event.metrics for event in loop.run(lambda: False) if isinstance(event, StepFinished)]
    first, last = steps[0], steps[-1]
    assert first["reward"] < 0.35
    assert last["reward"] > first["reward"] + 0.25
    assert last["tools/calls_mean"] > first["tools/calls_mean"] + 0.25
    assert server.requests[-1].json["arguments"] == ARGUMENTS


def _product(request: Recorded) -> str:
    arguments = request.json["arguments"]
    return str(arguments["a"] * arguments["b"])
