"""What supervised training learns of a conversation, by the families' own chat templates."""

import importlib.resources
from typing import Any

import pytest

from grpo_engine.config.messages import learned_text
from tests.engine.config.test_turn_ends import rendering

QUESTION = {"role": "user", "content": "1+1?"}
SHORT, THOUGHTFUL = "2", "<think>\none and one\n</think>\n\n2"
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}


def learned(name: str, content: str, **more: Any) -> str:
    """What is learned of one answer."""
    source = (importlib.resources.files("trl") / "chat_templates" / f"{name}.jinja").read_text()
    last = {"role": "assistant", "content": content, **more}
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
        ("deepseek_r1_distill", "> 2", "> 2"),
        ("qwen3_5_nothink", THOUGHTFUL, THOUGHTFUL),
    ],
)
def test_an_answer_continues_the_prompt_of_its_template(name: str, content: str, expected: str) -> None:
    assert learned(name, content) == expected


def test_a_call_follows_the_end_of_the_thoughts_that_the_prompt_began() -> None:
    text = learned("nemotron_3_nano", "Let me add.", tool_calls=[CALL])
    assert text.startswith("</think>Let me add.\n<tool_call>\n<function=add>\n<parameter=a>\n1\n")
