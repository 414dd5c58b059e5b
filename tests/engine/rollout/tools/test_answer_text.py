"""The text of an answer with tool calls, as clients of the chat API and agents get it."""

import pytest

from grpo_engine.rollout.tools.calls import ToolCall
from tests.engine.rollout.tools.test_calls import NAMES, reader, turn


@pytest.mark.parametrize("name", NAMES)
def test_clients_get_the_text_before_the_first_call_without_the_marks_around_calls(name: str) -> None:
    call = turn(name, ("add", {"a": 3}))
    assert reader(name).split(f"I look it up. {call}") == ("I look it up.", [ToolCall("add", {"a": 3})])
    assert reader(name).split(call)[0] == ""


@pytest.mark.parametrize(
    "call",
    [
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 3}}]</s>',
        '<|tool_call|>[{"name": "add", "arguments": {"a": 3}}]<|/tool_call|>',
        '{"arguments": {"a": 3}, "name": "add"}',
        '{"parameters": {"a": 3}, "type": "function", "name": "add"}',
    ],
)
def test_clients_get_the_text_before_a_call_in_any_form_of_json(call: str) -> None:
    text = 'Ada is {"name": "Ada", "age": 36}.'
    assert reader("llama").split(f"{text} {call}") == (text, [ToolCall("add", {"a": 3})])
