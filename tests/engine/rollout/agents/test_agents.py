"""Black-box agents, written with OpenAI's client, as rollouts: exact tokens, forks, retries, failures."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import httpx
import openai
import pytest

from examples.agent.agent import ADD, solve
from grpo_engine.config.reinforcement import ReinforcementHyperparameters
from grpo_engine.config.tools import HttpTool, function_schemas
from grpo_engine.contract.records import FinishReason, Score
from grpo_engine.models.policy import Policy
from grpo_engine.objective.advantages import GroupRewards
from grpo_engine.objective.advantages import advantages as advantages_of
from grpo_engine.objective.packing import TrainingGroup, TrainingSequence, training_groups
from grpo_engine.objective.types import Group, ScoredGroup
from grpo_engine.rollout.dataset import RowReader
from grpo_engine.rollout.sampler.torch_sampler import TorchSampler
from grpo_engine.rollout.tools.sampler import ToolSampler
from tests.engine.conftest import sum_rows
from tests.engine.rollout.agents.conftest import SAMPLING, Run, ask, chat, prompts
from tests.engine.rollout.tools.scripted_sampler import ScriptedSampler, Stream
from tests.support.chat_server import ScriptedServer

CALL = '<tool_call>{"name": "add", "arguments": {"a": 3, "b": 4}}</tool_call>'
TOOL = HttpTool(type="http", url="https://tools.example/add", **ADD["function"])


def add(client: openai.OpenAI, asked: dict[str, Any]) -> float:
    """The example's agent."""
    solve(client, asked["model"], asked["task"]["messages"])
    return 0.5


def test_an_agent_that_calls_a_tool_is_trained_on_the_tokens_of_a_job_with_that_tool(
    run: Run, make_policy: Callable[..., Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    says = [f"Let me see. {CALL}", "It is 7."]
    (found,) = run(add, lambda stream: says[stream[2]], group_size=3)
    policy = make_policy()
    with ScriptedServer(lambda recorded: "7") as server:
        tool = HttpTool(**{**TOOL.model_dump(), "url": server.url})
        inner = ScriptedSampler(policy, lambda stream: says[stream[2]])
        reader = RowReader(policy.tokenizer, 0.0, function_schemas([TOOL]))
        rows = reader.prompts([{**row, "environment": "agent"} for row in sum_rows(1)])
        (expected,) = ToolSampler(inner, policy, [tool], max_turns=4).generate(rows, 3, SAMPLING)
    assert found.prompt.token_ids == expected.prompt.token_ids
    for own, other in zip(found.completions, expected.completions, strict=True):
        assert own.episode is not None
        assert own.episode.reward == 0.5
        fields = (
            "token_ids",
            "logprobs",
            "sampled",
            "text",
            "answer",
            "turns",
            "finish_reason",
            "row_starts",
        )
        assert [getattr(own, name) for name in fields] == [getattr(other, name) for name in fields]
        assert [each["answer"] for each in own.tool_calls] == ["7"]
    assert trained(found) == trained(expected)


def trained(group: Group) -> list[TrainingGroup]:
    """What the optimiser gets, if the first sample earned a reward and the others none."""
    rewards = [1.0] + [0.0] * (len(group.completions) - 1)
    (advantages,) = advantages_of([GroupRewards(tuple(rewards))])
    scores = tuple(Score(reward=reward) for reward in rewards)
    settings = ReinforcementHyperparameters.model_validate({})
    return training_groups([ScoredGroup(group, scores, advantages.values, has_signal=True)], settings)


def test_a_real_sampler_draws_the_tokens_that_it_draws_without_an_agent(
    run: Run, make_policy: Callable[..., Policy]
) -> None:
    sampling = replace(SAMPLING, max_tokens=12)
    policy = make_policy()
    (expected,) = TorchSampler(policy, 64).generate(prompts(policy), 3, sampling)
    (found,) = run(ask, TorchSampler(policy, 64), group_size=3, sampling=sampling)
    assert found.prompt.token_ids == expected.prompt.token_ids
    for own, other in zip(found.completions, expected.completions, strict=True):
        assert own.token_ids == other.token_ids
        assert own.logprobs == pytest.approx(other.logprobs, abs=1e-5)
        assert own.finish_reason == other.finish_reason


def test_a_conversation_that_breaks_its_prefix_becomes_another_row(run: Run) -> None:
    """The agent summarises: its third request repeats nothing of the first two but the system message."""

    def summarising(client: openai.OpenAI, asked: dict[str, Any]) -> float:
        system = {"role": "system", "content": "Be short."}
        first = [system, {"role": "user", "content": "One."}]
        said = chat(client, first).message
        chat(client, [*first, said, {"role": "user", "content": "Two."}])
        chat(client, [system, {"role": "user", "content": "So far: one, two."}])
        return 0.25

    texts = ["first", "second", "third"]
    (group,) = run(summarising, lambda stream: texts[stream[2]])
    (completion,) = group.completions
    (start,) = completion.row_starts
    sequences = TrainingSequence.unweighted(completion, 0).split(completion.row_starts, count(7))
    assert [each.index for each in sequences] == [0, 7]
    assert [len(each.token_ids) for each in sequences] == [start, completion.num_tokens - start]
    sampled = [
        [token for token, own in zip(each.token_ids, each.trained, strict=True) if own] for each in sequences
    ]
    assert [len(each) for each in sampled] == [len("firstsecond") + 2, len("third") + 1]
    assert completion.turns == 3
    assert completion.answer == "third"


def test_the_row_of_the_newest_turn_is_the_last_one(run: Run, make_policy: Callable[..., Policy]) -> None:
    """A sub-agent is asked between two turns; graders of steps see the last answer."""

    def delegating(client: openai.OpenAI, asked: dict[str, Any]) -> float:
        said = chat(client, first := [{"role": "user", "content": "One."}]).message
        chat(client, [{"role": "user", "content": "Sub."}])
        chat(client, [*first, said, {"role": "user", "content": "Two."}])
        return 0.25

    texts = ["first", "second", "third"]
    ((completion,),) = [group.completions for group in run(delegating, lambda stream: texts[stream[2]])]
    decoded = make_policy().completion_text(completion.token_ids[completion.row_starts[0] :])
    assert decoded.startswith("One.")
    assert decoded.endswith("third")


def test_recorded_ids_are_the_sampled_ones_whatever_branches(run: Run) -> None:
    """The agent goes back to its first answer and continues it in another way: each turn is trained once."""

    def says(stream: Stream) -> str:
        return f"turn {stream[2]}"

    def branching(client: openai.OpenAI, asked: dict[str, Any]) -> float:
        messages = asked["task"]["messages"]
        first = [*messages, chat(client, messages).message]
        for word in ("left", "right"):
            chat(client, [*first, {"role": "user", "content": word}])
        return 1.0

    (group,) = run(branching, says)
    (completion,) = group.completions
    sequences = TrainingSequence.unweighted(completion, 0).split(completion.row_starts, count(1))
    assert [sum(each.trained) for each in sequences] == [2 * len("turn 0") + 2, len("turn 2") + 1]
    shared = len("turn 0") + 1
    assert sequences[0].token_ids[:shared] == sequences[1].token_ids[:shared]


def test_a_group_whose_conversations_start_differently_shares_its_first_tokens(
    run: Run, make_policy: Callable[..., Policy]
) -> None:
    def naming(client: openai.OpenAI, asked: dict[str, Any]) -> float:
        number = asked["metadata"]["sample"]
        chat(client, [{"role": "user", "content": f"Attempt {number}."}])
        return float(number)

    (group,) = run(naming, lambda stream: "yes", group_size=2)
    tokenizer = make_policy().tokenizer
    assert tokenizer.decode(group.prompt.token_ids) == "<|user|>Attempt "
    for number, each in enumerate(group.completions):
        given = [token for token, own in zip(each.token_ids, each.sampled, strict=True) if not own]
        assert tokenizer.decode(given) == f"{number}.<|assistant|>"
        assert each.num_sampled == len("yes") + 1
        assert each.episode is not None
        assert each.episode.reward == number


def test_a_stream_is_sent_as_a_whole_and_a_repeated_request_is_sampled_once(
    run: Run,
) -> None:
    def streaming(client: openai.OpenAI, asked: dict[str, Any]) -> float:
        body = {"model": "policy", "messages": asked["task"]["messages"], "stream": True}
        headers = {"authorization": f"Bearer {asked['api_key']}"}
        url = f"{asked['base_url']}/chat/completions"
        said = []
        for _ in range(2):  # a client that repeats its request after a broken connection
            with httpx.stream("POST", url, json=body, headers=headers) as response:
                chunks = [
                    json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")
                ]
            said.append([chunk["choices"][0]["delta"] for chunk in chunks])
        assert said[0] == said[1]
        chat(client, body["messages"], max_tokens=5, logprobs=True)
        return float(said[0][1] == {"content": "well"})

    (group,) = run(streaming, lambda stream: "well" if stream[2] == 0 else "another one")
    (completion,) = group.completions
    assert completion.episode is not None
    assert (completion.episode.reward, completion.turns) == (1.0, 2)
    assert completion.finish_reason is FinishReason.STOP, "the agent, not the job, cut the last turn"


def add_by_responses(client: openai.OpenAI, asked: dict[str, Any], *, stream: bool) -> float:
    """`add` over OpenAI's newer interface."""
    items: list[Any] = list(asked["task"]["messages"])
    tools: Any = [
        {"type": "function", "strict": True, **each["function"]} for each in function_schemas([TOOL])
    ]
    while True:
        if stream:
            with client.responses.stream(model="policy", input=items, tools=tools) as events:
                response: Any = events.get_final_response()
        else:
            response = client.responses.create(model="policy", input=items, tools=tools)
        items += response.output
        calls = [each for each in response.output if each.type == "function_call"]
        if not calls:
            assert response.output_text == "It is 7."
            return 0.5
        items += [{"type": "function_call_output", "call_id": each.call_id, "output": "7"} for each in calls]


@pytest.mark.parametrize("stream", [False, True])
def test_responses_give_the_tokens_of_chat_completions(run: Run, stream: bool) -> None:
    says = [f"Let me see. {CALL}{CALL}", "It is 7."]
    agent = partial(add_by_responses, stream=stream)
    (found,) = run(agent, lambda stream: says[stream[2]])
    (expected,) = run(add, lambda stream: says[stream[2]])
    assert found.completions[0].failure is None
    assert found.prompt.token_ids == expected.prompt.token_ids
    assert found.completions[0].token_ids == expected.completions[0].token_ids
    assert found.completions[0].sampled == expected.completions[0].sampled
