"""Environments of several types in one job, and tools beside them, against real servers."""

import threading
from collections.abc import Callable
from typing import Any

import openai
import pytest

from grpo_engine.config.environments import AgentEnvironment, OpenEnvEnvironment
from grpo_engine.config.tools import HttpTool, function_schemas
from grpo_engine.contract.records import EpisodeTurn, ToolAnswer
from grpo_engine.models.policy import Policy
from grpo_engine.rollout.agents.agents import Agents
from grpo_engine.rollout.dataset import RowReader
from grpo_engine.rollout.environments.sampler import EnvironmentSampler
from grpo_engine.rollout.environments.servers import OpenEnvServers
from tests.engine.rollout.agents.conftest import SAMPLING, chat, serving
from tests.engine.rollout.tools.scripted_sampler import ScriptedSampler, Stream
from tests.support.chat_server import ScriptedServer
from tests.support.openenv.server import OpenEnvServer

GAME = {"messages": [{"role": "user", "content": "Play."}], "environment": "game", "reset": {"word": "ab"}}
TASK = {"messages": [{"role": "user", "content": "Work."}], "environment": "agent"}
CALL = '<tool_call>{"name": "look", "arguments": {"at": "b"}}</tool_call>'
pytestmark = pytest.mark.usefixtures("allowed")


def game(url: str) -> dict[str, OpenEnvEnvironment]:
    return {"game": OpenEnvEnvironment(type="openenv", url=url, timeout_seconds=60.0)}


def test_rollouts_of_an_agent_and_of_a_server_share_one_sampling(
    make_policy: Callable[..., Policy], words: OpenEnvServer
) -> None:
    policy, has_stepped = make_policy(), threading.Event()

    def says(stream: Stream) -> str:
        prompt, _, turn = stream
        if prompt % 2:
            if turn:
                has_stepped.set()
            return "ab"[turn]
        return "done"

    def work(client: openai.OpenAI, asked: dict[str, Any]) -> float:
        """Asks, waits for the game's second turn, and asks again."""
        said = chat(client, TASK["messages"]).message.content
        assert has_stepped.wait(60)
        answer = {"role": "assistant", "content": said}
        chat(client, [*TASK["messages"], answer, {"role": "user", "content": "Check."}])
        return 0.25

    with serving(work) as url:
        agents = {"agent": AgentEnvironment(type="agent", url=url, timeout_seconds=120)}
        reader = RowReader(policy.tokenizer)
        sampler = EnvironmentSampler(
            ScriptedSampler(policy, says),
            Agents(policy, agents, 0.0, 1000, "127.0.0.1"),
            OpenEnvServers(policy, game(words.url), reader),
        )
        groups = sampler.generate(reader.prompts([TASK, GAME, TASK, GAME]), 2, SAMPLING)
    found = [[each.episode for each in group.completions] for group in groups]
    assert [[each and (each.environment, each.reward) for each in own] for own in found] == [
        [("agent", 0.25)] * 2,
        [("game", 1.0)] * 2,
    ] * 2
    assert [group.prompt.row for group in groups] == [0, 1, 2, 3]


@pytest.mark.parametrize(("max_turns", "calls"), [(8, 1), (2, 0)])
def test_a_turn_that_calls_a_tool_of_the_job_is_answered_by_it_and_is_not_an_action(
    make_policy: Callable[..., Policy], words: OpenEnvServer, max_turns: int, calls: int
) -> None:
    policy = make_policy()
    says = ["a", f"I look. {CALL}", "b"]
    with ScriptedServer(lambda recorded: f"seen {recorded.json['arguments']['at']}") as server:
        parameters = {"type": "object", "properties": {"at": {"type": "string"}}}
        tools = [HttpTool(type="http", name="look", url=server.url, parameters=parameters)]
        reader = RowReader(policy.tokenizer, 0.0, function_schemas(tools))
        options = {"game": game(words.url)["game"].model_copy(update={"max_turns": max_turns})}
        servers = OpenEnvServers(policy, options, reader, tools)
        inner = ScriptedSampler(policy, lambda stream: says[stream[2]])
        (group,) = EnvironmentSampler(inner, servers).generate(reader.prompts([GAME]), 1, SAMPLING)
    (completion,) = group.completions
    assert completion.episode is not None
    answer_of_tool = ToolAnswer(name="look", text="seen b")
    whole = (
        EpisodeTurn(action="a", observation="right", reward=1.0),
        EpisodeTurn(action=says[1], observation="", answers=(answer_of_tool,)),
        EpisodeTurn(action="b", observation="right", reward=1.0, done=True),
    )
    assert completion.episode.turns == (whole if calls else whole[:1])
    assert (completion.episode.reward, completion.turns) == (1.0, 3 if calls else 2)
    assert [each["answer"] for each in completion.tool_calls] == ["seen b"] * calls
    assert completion.tool_turns == ()
    if calls:
        answer = policy.tokenizer("seen b", add_special_tokens=False).input_ids
        given = [
            token for token, own in zip(completion.token_ids, completion.sampled, strict=True) if not own
        ]
        assert str(answer)[1:-1] in str(given)
