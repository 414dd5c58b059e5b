"""Tasks of the real package `verifiers`, in an environment of its own, as a black-box agent."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.environments import AgentEnvironment
from grpo_engine.models.policy import Policy
from grpo_engine.rollout.agents.agents import Agents
from grpo_engine.rollout.dataset import RowReader
from grpo_engine.rollout.environments.sampler import EnvironmentSampler
from tests.engine.rollout.agents.conftest import SAMPLING
from tests.engine.rollout.tools.scripted_sampler import ScriptedSampler

ROOT = Path(__file__).parents[4]
COMMAND = [
    str(ROOT / ".venv-verifiers/bin/python"),
    str(ROOT / "examples/verifiers/agent.py"),
    *("sums", "--harness", "sums"),
]
PATH = {"PYTHONPATH": str(ROOT / "examples/verifiers"), "PATH": "/usr/bin:/bin"}

pytestmark = pytest.mark.live_verifiers


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Of the agent, which has no home of its user and so no account."""
    own = {**PATH, "HOME": str(tmp_path)}
    with subprocess.Popen([*COMMAND, "--port", "0"], stdout=subprocess.PIPE, text=True, env=own) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def test_a_task_of_verifiers_rewards_the_tokens_that_its_harness_requested(
    make_policy: Callable[..., Policy], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPO_ALLOWED_HOSTS", "127.0.0.1")
    written = tmp_path / "rows.jsonl"
    subprocess.run([*COMMAND, "--rows", str(written)], check=True, env={**PATH, "HOME": str(tmp_path)})
    rows: list[dict[str, Any]] = [json.loads(line) for line in written.read_text().splitlines()]
    assert (len(rows), rows[1]["prompt"], rows[1]["environment"]) == (16, "0 + 1", "verifiers")
    broken = {**rows[1], "data": {"answer": 7}}
    policy = make_policy()
    says = {(0, 0): ("2", "1"), (0, 1): ("1", "2")}
    inner = ScriptedSampler(policy, lambda stream: says[stream[:2]][stream[2]])
    agents = {"verifiers": AgentEnvironment(type="agent", url=url, timeout_seconds=60)}
    sampler = EnvironmentSampler(inner, Agents(policy, agents, 0.0, 500, "127.0.0.1"))
    prompts = RowReader(policy.tokenizer).prompts([rows[1], broken])
    sums, failed = sampler.generate(prompts, 2, SAMPLING)
    assert [each.episode and each.episode.reward for each in sums.completions] == [1.0, 0.0]
    for completion in sums.completions:
        assert (completion.turns, completion.row_starts) == (2, ()), "the second request continues the first"
        assert completion.num_sampled == 4
    assert "status 422" in str(failed.completions[0].failure)
