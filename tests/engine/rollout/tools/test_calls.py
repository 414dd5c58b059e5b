"""Tool calls in texts: whatever a model writes is a call, a call with an error, or no call."""

import pytest

from grpo_engine.rollout.tools.calls import ToolCall, find_calls

ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def test_a_text_without_calls_has_none() -> None:
    assert find_calls("The sum is 7. {'name': 'add'}") == []


def test_several_calls_are_found_in_their_order() -> None:
    other = '<tool_call>{"name": "b", "arguments": {}}</tool_call>'
    assert find_calls(f"First {ADD} then {other} done") == [ToolCall("add", {"a": 1}), ToolCall("b", {})]


def test_a_last_call_without_its_end_tag_counts() -> None:
    assert find_calls('<tool_call>{"name": "add", "arguments": {"a": 2}}') == [ToolCall("add", {"a": 2})]


def test_a_call_that_was_only_thought_of_is_none() -> None:
    assert find_calls(f"<think>I could {ADD}</think> 7") == []
    assert find_calls(f"<think>no</think>{ADD}") == [ToolCall("add", {"a": 1})]


def test_arguments_may_be_json_in_a_string_and_may_be_left_out() -> None:
    (call,) = find_calls(r'<tool_call>{"name": "add", "arguments": "{\"a\": 3}"}</tool_call>')
    assert call == ToolCall("add", {"a": 3})
    (call,) = find_calls('<tool_call>{"name": "now"}</tool_call>')
    assert call == ToolCall("now", {})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{'name': 'add'}", "the call is not JSON"),
        ('{"name": "add", "arguments": {"a": NaN}}', "the call is not JSON"),
        ("[" * 100_000, "the call is not JSON"),
        ("", "the call is not JSON"),
        ("[1]", 'a call is {"name"'),
        ('{"name": 3}', 'a call is {"name"'),
        ('{"name": "add", "arguments": [1]}', "arguments must be a JSON object"),
        ('{"name": "add", "arguments": "one"}', "arguments must be a JSON object"),
    ],
)
def test_an_unreadable_call_carries_the_reason(text: str, error: str) -> None:
    (call,) = find_calls(f"<tool_call>{text}</tool_call>")
    assert call.error.startswith(error)
