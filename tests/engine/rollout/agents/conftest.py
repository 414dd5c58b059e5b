"""Agents behind an HTTP server, and a sampler that gives them the policy."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest

from grpo_engine.config.environments import AgentEnvironment
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Group, Prompt
from grpo_engine.rollout.agents.agents import Agents
from grpo_engine.rollout.dataset import RowReader
from grpo_engine.rollout.environments.sampler import EnvironmentSampler
from grpo_engine.rollout.sampler.base import Sampler, Sampling
from tests.engine.conftest import sum_rows
from tests.engine.rollout.tools.scripted_sampler import ScriptedSampler, Stream
from tests.support.chat_server import Reply, ScriptedServer

SAMPLING = Sampling(max_tokens=400, seed=3, step=2)
Agent = Callable[[openai.OpenAI, dict[str, Any]], Any]
"""Works on a request; returns the reward, or a whole reply."""
Run = Callable[..., list[Group]]


@pytest.fixture
def run(make_policy: Callable[..., Policy], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("GRPO_ALLOWED_HOSTS", "127.0.0.1")

    def run(
        agent: Agent,
        says: Callable[[Stream], Any] | Sampler,
        group_size: int = 1,
        rows: list[dict[str, Any]] | None = None,
        sampling: Sampling = SAMPLING,
        ports: tuple[int, int] | None = None,
        **options: Any,
    ) -> list[Group]:
        """`says`: a sampler, or the answers of a `ScriptedSampler`."""
        policy = make_policy()
        inner = ScriptedSampler(policy, says) if callable(says) else says
        with serving(agent) as url:
            options = {"timeout_seconds": 120, **options}
            environments = {"agent": AgentEnvironment(type="agent", url=url, **options)}
            agents = Agents(policy, environments, 0.0, 1000, "127.0.0.1", ports)
            return EnvironmentSampler(inner, agents).generate(prompts(policy, rows), group_size, sampling)

    return run


def prompts(policy: Policy, rows: list[dict[str, Any]] | None = None) -> list[Prompt]:
    given = rows or sum_rows(1)
    return RowReader(policy.tokenizer).prompts([{**row, "environment": "agent"} for row in given])


@contextmanager
def serving(agent: Agent) -> Iterator[str]:
    def answer(recorded: Any) -> Any:
        asked = recorded.json
        given = {"base_url": asked["base_url"], "api_key": asked["api_key"], "max_retries": 2}
        # loading certificates takes as long as an episode
        with openai.OpenAI(http_client=openai.DefaultHttpxClient(verify=False), **given) as client:
            done = agent(client, asked)
        return done if isinstance(done, Reply) else {"reward": done}

    with ScriptedServer(answer) as server:
        yield server.url


def chat(client: openai.OpenAI, messages: Any, **options: Any) -> Any:
    return client.chat.completions.create(model="policy", messages=messages, **options).choices[0]


def ask(client: openai.OpenAI, asked: dict[str, Any]) -> float:
    chat(client, asked["task"]["messages"])
    return 1.0
