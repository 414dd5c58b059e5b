"""Rollouts that fail, and requests that a rollout cannot answer."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import openai
import pytest

from grpo_engine.chat.protocol import Refused
from grpo_engine.config.environments import AgentEnvironment
from grpo_engine.config.runtime import Runtime
from grpo_engine.contract.errors import ConfigError
from grpo_engine.models.policy import Policy
from grpo_engine.outbound.web import MAX_ANSWER_BYTES
from grpo_engine.rollout.agents.agents import Agents
from grpo_engine.rollout.agents.conversations import THREAD
from grpo_engine.rollout.agents.dialogue import Dialogue
from grpo_engine.rollout.dataset import RowReader
from grpo_engine.rollout.environments.sampler import EnvironmentSampler
from grpo_engine.rollout.tools.rendering import AnswerRenderer
from tests.engine.conftest import add_token_without_embedding
from tests.engine.rollout.agents.conftest import SAMPLING, Agent, Run, ask, chat, prompts, serving
from tests.engine.rollout.tools.scripted_sampler import ScriptedSampler, Stream
from tests.ports import free_port
from tests.support.chat_server import Reply


@pytest.mark.parametrize(
    ("agent", "options", "reason"),
    [
        (
            lambda client, asked: Reply(status=500, body="oops"),
            {},
            'the agent answered with status 500: "oops"',
        ),
        (lambda client, asked: Reply(body=b"[1]"), {}, 'the agent\'s answer is not a JSON object: "[1]"'),
        (lambda client, asked: Reply(body=b'{"reward": NaN}'), {}, "the reward NaN is not a finite number"),
        (lambda client, asked: Reply(body=b'{"reward": "1.0"}'), {}, 'the reward "1.0" is not a finite'),
        (lambda client, asked: Reply(body=b'{"reward": true}'), {}, "the reward true is not a finite number"),
        (lambda client, asked: Reply(body=b'{"reward": 1%s}' % (b"0" * 400)), {}, "is not a finite number"),
        (lambda client, asked: Reply(stall=True), {"timeout_seconds": 6}, "did not answer within 6 s"),
        (lambda client, asked: 1.0, {}, "the agent ended without a completion"),
    ],
)
def test_a_failed_rollout_is_unscorable_and_leaves_the_others(
    run: Run, agent: Agent, options: dict[str, Any], reason: str
) -> None:
    def second_fails(client: openai.OpenAI, asked: dict[str, Any]) -> Any:
        if asked["metadata"]["sample"] == 0:
            return ask(client, asked)
        if "without a completion" not in reason:
            ask(client, asked)
        return agent(client, asked)

    (group,) = run(second_fails, lambda stream: "yes", group_size=2, **options)
    good, bad = group.completions
    assert good.failure is None
    assert bad.failure is not None
    assert reason in bad.failure


def test_a_rollout_whose_requests_were_refused_names_the_last_refusal(run: Run) -> None:
    def swallows(client: openai.OpenAI, asked: dict[str, Any]) -> float:
        with suppress(openai.BadRequestError):
            chat(client, [{"role": "user", "content": "x" * 5000}])
        return 0.0

    ((refused,),) = (group.completions for group in run(swallows, lambda stream: "yes"))
    reason = "the agent ended without a completion; its last request was refused: The conversation has 5"
    assert str(refused.failure).startswith(reason)


def test_an_agent_whose_answer_is_too_long_gets_no_second_request(run: Run) -> None:
    seen: list[dict[str, Any]] = []

    def long_winded(client: openai.OpenAI, asked: dict[str, Any]) -> Reply:
        seen.append(asked)
        return Reply(body=b" " * (MAX_ANSWER_BYTES + 1))

    (group,) = run(long_winded, lambda stream: "yes")
    (bad,) = group.completions
    assert (len(seen), bad.failure) == (1, f"the response is longer than {MAX_ANSWER_BYTES} bytes")


def test_an_error_of_this_machine_ends_the_sampling(
    make_policy: Callable[..., Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPO_ALLOWED_HOSTS", "127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such/file")
    policy = make_policy()
    environments = {"agent": AgentEnvironment(type="agent", url="https://127.0.0.1:9")}
    inner = ScriptedSampler(policy, lambda stream: "yes")
    sampler = EnvironmentSampler(inner, Agents(policy, environments, 0.0, 1000, "127.0.0.1"))
    with pytest.raises(FileNotFoundError):
        sampler.generate(prompts(policy), 1, SAMPLING)


def test_no_rollout_is_started_after_sampling_has_failed(
    make_policy: Callable[..., Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPO_ALLOWED_HOSTS", "127.0.0.1")
    policy = make_policy()
    seen: list[dict[str, Any]] = []

    def asking(client: openai.OpenAI, asked: dict[str, Any]) -> float:
        seen.append(asked)
        try:
            return ask(client.with_options(max_retries=0), asked)
        except openai.OpenAIError:
            return 0.0

    def failing(stream: Stream) -> str:
        raise ZeroDivisionError

    with serving(asking) as url:
        environments = {"agent": AgentEnvironment(type="agent", url=url, concurrency=1)}
        inner = ScriptedSampler(policy, failing)
        sampler = EnvironmentSampler(inner, Agents(policy, environments, 0.0, 1000, "127.0.0.1"))
        with pytest.raises(ZeroDivisionError):
            sampler.generate(prompts(policy), 3, SAMPLING)
        for thread in threading.enumerate():
            if thread.name == THREAD:
                thread.join(60)
    assert len(seen) == 1


def test_a_conversation_that_leaves_no_room_is_not_kept(make_policy: Callable[..., Policy]) -> None:
    policy = make_policy()
    renderer = AnswerRenderer(policy)
    dialogue = Dialogue(RowReader(policy.tokenizer), renderer, context=3, max_tokens=100)
    with pytest.raises(Refused, match="leaves no room"):
        dialogue.row_for([{"role": "user", "content": "one two three four five six"}], ())
    assert dialogue.rows == []


def test_a_token_that_the_model_lacks_is_left_out_of_an_agents_messages(
    make_policy: Callable[..., Policy],
) -> None:
    policy = make_policy()
    texts = f"7 {add_token_without_embedding(policy)}8", "7 8"
    dialogue = Dialogue(RowReader(policy.tokenizer), AnswerRenderer(policy), context=1000, max_tokens=100)
    found, expected = (dialogue.row_for([{"role": "user", "content": text}], ()) for text in texts)
    assert found.token_ids == expected.token_ids


def refusal_of(client: openai.OpenAI, messages: Any, **options: Any) -> str:
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, messages, **options)
    return str(refused.value.code)


def test_what_a_rollout_cannot_answer_is_refused_in_openai_s_form(run: Run) -> None:
    found: list[str] = []

    def asking_too_much(client: openai.OpenAI, asked: dict[str, Any]) -> float:
        messages = asked["task"]["messages"]
        found.append(refusal_of(client, messages, n=2))
        found.append(refusal_of(client, messages, stop=["Observation:"]))
        found.append(refusal_of(client, [{"role": "user", "content": "long " * 400}]))
        chat(client, messages)
        found.append(refusal_of(client, [*messages, {"role": "user", "content": "again"}]))
        return 1.0

    run(asking_too_much, lambda stream: "yes", max_turns=1)
    assert found == ["invalid_value", "invalid_value", "context_length_exceeded", "too_many_turns"]


def test_a_key_is_refused_after_its_rollout(run: Run) -> None:
    keys: list[str] = []

    def keeping(client: openai.OpenAI, asked: dict[str, Any]) -> float:
        chat(client, asked["task"]["messages"])
        other = client.with_options(api_key=keys[0] if keys else "no key")
        with pytest.raises(openai.AuthenticationError):
            chat(other, asked["task"]["messages"])
        keys.append(asked["api_key"])
        return 1.0

    (group,) = run(keeping, lambda stream: "yes", group_size=2, concurrency=1)
    assert [each.failure for each in group.completions] == [None, None]


def test_agents_reach_the_engine_at_a_port_of_the_operator_s_range(run: Run) -> None:
    port = free_port()
    urls: list[str] = []

    def noting(client: openai.OpenAI, asked: dict[str, Any]) -> float:
        urls.append(asked["base_url"])
        return ask(client, asked)

    for _ in range(2):
        run(noting, lambda stream: "yes", ports=(port, port))
    assert urls == [f"http://127.0.0.1:{port}/v1"] * 2
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(ConfigError, match=f"ports {port} to {port}: .*all of the ports are in use"),
    ):
        run(noting, lambda stream: "yes", ports=(port, port))
    with pytest.raises(ValueError, match="the first port is above the last"):
        Runtime.model_validate({"agent_ports": [port, port - 1]})


def test_a_group_whose_conversations_start_differently_says_what_to_change(run: Run) -> None:
    def sometimes_with_a_system(client: openai.OpenAI, asked: dict[str, Any]) -> float:
        messages = asked["task"]["messages"]
        system = [{"role": "system", "content": "Be brief."}] if asked["metadata"]["sample"] else []
        chat(client, [*system, *messages])
        return 1.0

    (group,) = run(sometimes_with_a_system, lambda stream: "yes", group_size=2)
    reason = "the conversations of its group start with different tokens: let all start with the same role"
    assert {each.failure for each in group.completions} == {reason}
