"""Conversations as text, and what supervised training learns of them, by the families' own chat templates."""

import importlib.resources
import json
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from grpo_engine.config.messages import learned_text, rendered
from tests.engine.config.test_turn_ends import rendering

QUESTION: dict[str, Any] = {"role": "user", "content": "1+1?"}
ANSWER: dict[str, Any] = {"role": "assistant", "content": "4"}
SHORT, THOUGHTFUL = "2", "<think>\none and one\n</think>\n\n2"
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}


def source_of(name: str) -> str:
    return (importlib.resources.files("trl") / "chat_templates" / f"{name}.jinja").read_text()


def learned(name: str, content: str, **more: Any) -> str:
    """What is learned of one answer."""
    source, last = source_of(name), {"role": "assistant", "content": content, **more}
    prompt = rendering(source, "</s>", for_completion=True)([QUESTION])
    whole = rendering(source, "</s>")([QUESTION, last])
    assert prompt is not None
    assert whole is not None
    return learned_text(prompt, whole, last)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("qwen3", SHORT, "<think>\n\n</think>\n\n2<|im_end|>\n"),
        ("qwen3_5_think", THOUGHTFUL, "one and one\n</think>\n\n2<|im_end|>\n"),
        ("nemotron_3_nano", SHORT, "</think>2<|im_end|>\n"),
        ("nemotron_3_nano", THOUGHTFUL, "one and one\n</think>\n\n2<|im_end|>\n"),
        ("deepseek_r1_distill", THOUGHTFUL, "one and one\n</think>\n\n2"),
        ("deepseek_r1_distill", "<b>2</b>", "<b>2</b><｜end▁of▁sentence｜>"),
        ("deepseek_r1_distill", "> 2", "> 2<｜end▁of▁sentence｜>"),
        ("qwen3_5_nothink", THOUGHTFUL, THOUGHTFUL),
    ],
)
def test_an_answer_continues_the_prompt_of_its_template(name: str, content: str, expected: str) -> None:
    assert learned(name, content) == expected


def test_a_call_follows_the_end_of_the_thoughts_that_the_prompt_began() -> None:
    text = learned("nemotron_3_nano", "Let me add.", tool_calls=[CALL])
    assert text.startswith("</think>Let me add.\n<tool_call>\n<function=add>\n<parameter=a>\n1\n")


def test_a_call_without_text_is_learned_after_the_thoughts_that_the_prompt_began() -> None:
    written = {**CALL, "function": {"name": "add", "arguments": '{"a": 1}'}}
    text = learned("deepseekv3", "", tool_calls=[written])
    call = 'function<｜tool▁sep｜>add\n```json\n{"a": 1}\n```'
    assert text.startswith(f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{call}<｜tool▁call▁end｜>")


def test_an_answer_after_calls_with_thoughts_is_learned_as_a_whole() -> None:
    """The template leaves the thoughts of calling turns out of a conversation that ends with an answer."""
    calling = {"role": "assistant", "thinking": "I need it.", "tool_calls": [CALL]}
    turns = [calling, {"role": "tool", "content": "3"}, calling, {"role": "tool", "content": "4"}]
    prompt = rendering(source_of("gptoss"), "</s>", for_completion=True)([QUESTION, *turns])
    last = {"role": "assistant", "content": "4", "thinking": "So 4."}
    whole = rendering(source_of("gptoss"), "</s>")([QUESTION, *turns, last])
    assert prompt is not None
    assert whole is not None
    thoughts = "<|channel|>analysis<|message|>So 4.<|end|>"
    answer = "<|start|>assistant<|channel|>final<|message|>4<|return|>"
    assert learned_text(prompt, whole, last) == thoughts + answer


ARGUMENTS = {"city": "O'Connor 東京", "days": [1, 2]}
OF_ARGUMENTS = {
    "deepseekv3": '```json\n{"city": "O\'Connor 東京", "days": [1, 2]}\n```',
    "gemma4": 'call:look{city:<|"|>O\'Connor 東京<|"|>,days:[1,2]}',
    "glm4moe": "<arg_value>O'Connor 東京</arg_value>\n<arg_key>days</arg_key>\n<arg_value>[1, 2]</arg_value>",
    "gptoss": '<|message|>{"city": "O\'Connor 東京", "days": [1, 2]}<|call|>',
    "llama3_1": '"parameters": {"city": "O\'Connor 東京", "days": [1, 2]}}',
    "qwen2_5": '"arguments": {"city": "O\'Connor 東京", "days": [1, 2]}}',
    "qwen3": '"arguments": {"city": "O\'Connor 東京", "days": [1, 2]}}',
    "qwen3_5_think": "<parameter=city>\nO'Connor 東京\n</parameter>\n<parameter=days>\n[1, 2]\n</parameter>",
}


def shown(name: str, *messages: dict[str, Any]) -> str:
    """The messages as the template's text."""

    def render(forms: list[dict[str, Any]]) -> str:
        (text,), _ = render_jinja_template([forms], chat_template=source_of(name), bos_token="")
        return str(text)

    return rendered(render, messages)


def calling(arguments: Any, **more: Any) -> dict[str, Any]:
    calls = [{"id": "a", "type": "function", "function": {"name": "look", "arguments": arguments}}]
    return {"role": "assistant", **more, "tool_calls": calls}


@pytest.mark.parametrize("name", OF_ARGUMENTS)
def test_a_call_is_the_same_text_in_every_form_that_openais_clients_write(name: str) -> None:
    """Most templates quote arguments in JSON again; some refuse them or a missing text, or write `None`."""
    text = shown(name, QUESTION, calling(ARGUMENTS, content=""))
    assert OF_ARGUMENTS[name] in text
    assert shown(name, QUESTION, calling(json.dumps(ARGUMENTS), content="")) == text
    assert shown(name, QUESTION, calling(ARGUMENTS, content=None)) == text
    assert shown(name, QUESTION, calling(ARGUMENTS)) == text


@pytest.mark.parametrize("name", OF_ARGUMENTS)
def test_fields_that_are_null_or_empty_are_as_if_missing(name: str) -> None:
    """gpt-oss takes a message with the field tool_calls for one with calls, whatever the field has."""
    text = shown(name, QUESTION, ANSWER)
    assert shown(name, QUESTION, {**ANSWER, "tool_calls": None, "refusal": None, "thinking": None}) == text
    assert shown(name, QUESTION, {**ANSWER, "tool_calls": []}) == text


@pytest.mark.parametrize("name", OF_ARGUMENTS)
def test_arguments_that_are_null_or_empty_are_no_arguments(name: str) -> None:
    forms = [shown(name, QUESTION, calling(arguments)) for arguments in ("", None, {})]
    assert forms == forms[-1:] * 3


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_a_template_that_writes_only_calls_without_text_gets_null_as_content(content: dict[str, Any]) -> None:
    text = shown("deepseek_r1_distill", QUESTION, calling(ARGUMENTS, **content))
    assert OF_ARGUMENTS["deepseekv3"] in text


@pytest.mark.parametrize("name", ["cohere", "phi3"])
def test_a_template_that_writes_no_calls_gets_an_empty_text_as_content(name: str) -> None:
    assert shown(name, QUESTION, calling(ARGUMENTS)) == shown(name, QUESTION, {**ANSWER, "content": ""})


@pytest.mark.parametrize("name", ["gemma3", "glm4moe", "gptoss", "llama3", "qwen3", "qwen3_5_think"])
def test_a_developer_s_message_is_written_as_a_system_message(name: str) -> None:
    """Without that, Qwen and GLM would leave it out, and Gemma would refuse it."""
    text = shown(name, {"role": "developer", "content": "Be brief."}, QUESTION)
    assert "Be brief." in text
    assert text == shown(name, {"role": "system", "content": "Be brief."}, QUESTION)
