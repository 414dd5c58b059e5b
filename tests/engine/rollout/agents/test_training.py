"""Jobs with black-box agents through the engine."""

from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import openai
import pytest

from grpo_engine.config.job import RunConfig
from grpo_engine.contract.events import Evaluated, RolloutsRecorded
from grpo_engine.run.build import build_loop
from tests.engine.conftest import write_rows
from tests.engine.rollout.agents.conftest import chat, serving


def letters(client: openai.OpenAI, asked: dict[str, Any]) -> float:
    """Asks twice; the second request breaks the prefix. Pays for the share of letters in both answers."""
    asked_for = [[{"role": "user", "content": text}] for text in ("First.", "Second.")]
    said = "".join(chat(client, messages, max_tokens=8).message.content for messages in asked_for)
    return sum(map(str.isalpha, said)) / 16


@pytest.mark.parametrize(("staleness", "n_steps", "gain"), [(0, 8, 0.08), (1, 3, -1.0)])
def test_a_job_learns_from_an_agent_that_forks(
    make_config: Callable[..., RunConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    staleness: int,
    n_steps: int,
    gain: float,
) -> None:
    monkeypatch.setenv("GRPO_ALLOWED_HOSTS", "127.0.0.1")
    given = {"max_completion_tokens": 40, "beta": 0.0, "learning_rate": 1e-2, "lora": "full"}
    shape = {"n_steps": n_steps, "prompts_per_step": 2, "group_size": 8, "max_staleness": staleness}
    data = make_config(**given, **shape).model_dump(mode="json")
    rows = [{"messages": [{"role": "user", "content": "Begin."}], "environment": "letters"}] * 4
    data["training_file"] = str(write_rows(tmp_path / "rows.jsonl", rows))
    data["validation_file"] = str(write_rows(tmp_path / "held_out.jsonl", rows[:1]))
    data["runtime"]["agent_host"] = "127.0.0.1"
    method = data["method"]["reinforcement"]
    del method["grader"]
    with serving(letters) as url:
        method["environments"] = {"letters": {"type": "agent", "url": url, "timeout_seconds": 30}}
        loop = build_loop(RunConfig.model_validate(data), tmp_path / "run")
        events = list(loop.run(lambda: False))
    recorded = [each for each in events if isinstance(each, RolloutsRecorded) and each.split == "train"]
    rewards = [
        fmean(each.reward or 0.0 for group in event.groups for each in group.completions)
        for event in recorded
    ]
    assert fmean(rewards[-2:]) > fmean(rewards[:2]) + gain
    turns = {each.turns for event in recorded for group in event.groups for each in group.completions}
    assert turns == {2}
    held_out = [each.metrics for each in events if isinstance(each, Evaluated)][-1]
    assert held_out["environments/letters/failure_rate"] == 0.0
