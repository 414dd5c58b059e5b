"""Rollouts that fail, and requests that a rollout cannot answer."""

from typing import Any

import openai
import pytest

from tests.engine.rollout.agents.conftest import Agent, Run, ask, chat
from tests.support.chat_server import Reply


@pytest.mark.parametrize(
    ("agent", "options", "reason"),
    [
        (lambda client, asked: Reply(status=500, body="oops"), {}, "the agent answered with status 500"),
        (lambda client, asked: Reply(body=b"[1]"), {}, "the agent's answer is not a JSON object"),
        (lambda client, asked: Reply(body=b'{"reward": NaN}'), {}, 'the reward "nan" is not a finite number'),
        (lambda client, asked: Reply(stall=True), {"timeout_seconds": 3}, "did not answer within 3 s"),
        (lambda client, asked: 1.0, {}, "the agent ended without asking for a completion"),
    ],
)
def test_a_failed_rollout_is_unscorable_and_leaves_the_others(
    run: Run, agent: Agent, options: dict[str, Any], reason: str
) -> None:
    def second_fails(client: openai.OpenAI, asked: dict[str, Any]) -> Any:
        if asked["metadata"]["sample"] == 0:
            return ask(client, asked)
        if "without" not in reason:
            ask(client, asked)
        return agent(client, asked)

    (group,) = run(second_fails, lambda stream: "yes", group_size=2, **options)
    good, bad = group.completions
    assert good.failure is None
    assert bad.failure is not None
    assert reason in bad.failure


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
