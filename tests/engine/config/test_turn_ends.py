"""Stop tokens of models without generation_config.json, out of the families' own chat templates."""

import importlib.resources
import re
from typing import Any

import pytest
from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from grpo_engine.config.turn_ends import Render, turn_ends

SPECIAL = re.compile(r"<\|[^<>\s|]*\|>|<\|[a-z_]+>|<[a-z_]+\|>|<｜[^<>\s]*｜>|</?tool_call>|<[a-z]+_of_turn>")
"""Every token in one of these forms is special here, also those that are not in the original."""
ENDS = {
    "cohere2": ("<|END_OF_TURN_TOKEN|>", set()),
    "deepseekv3": ("<｜end▁of▁sentence｜>", set()),
    "gemma": ("<eos>", {"<end_of_turn>"}),
    "gemma4": ("<eos>", {"<turn|>", "<|tool_response>"}),
    "glm4moe": ("<|endoftext|>", {"<|user|>", "<|observation|>"}),
    "gptoss": ("<|endoftext|>", {"<|return|>", "<|call|>"}),
    "lfm2_2_5": ("<|endoftext|>", {"<|im_end|>"}),
    "llama3_1": ("<|end_of_text|>", {"<|eot_id|>"}),
    "phi3": ("<|endoftext|>", {"<|end|>"}),
    "qwen2_5": ("<|endoftext|>", {"<|im_end|>"}),
    "qwen3_5_think": ("<|im_end|>", set()),
}
"""Template → the tokenizer's end of sequence, and what the template adds to it."""


def rendering(source: str, end: str, *, for_completion: bool = False) -> Render:
    def render(messages: list[dict[str, Any]]) -> str | None:
        try:
            (text,), _ = render_jinja_template(
                [messages],
                chat_template=source,
                add_generation_prompt=for_completion,
                eos_token=end,
                bos_token="",
            )
        except (TemplateError, TypeError):
            return None
        return str(text)

    return render


@pytest.mark.parametrize("name", ENDS)
def test_a_turn_ends_as_its_familys_template_ends_it(name: str) -> None:
    end, expected = ENDS[name]
    source = (importlib.resources.files("trl") / "chat_templates" / f"{name}.jinja").read_text()
    special = {end, *SPECIAL.findall(source), "<|user|>"}
    assert turn_ends(rendering(source, end), special, {end}) == expected
    assert turn_ends(rendering(source, end), special, {end, *expected}) == set()


def test_a_template_that_refuses_every_conversation_or_writes_no_special_token_adds_no_end() -> None:
    plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    for source in ("{{ raise_exception('no') }}", plain):
        assert turn_ends(rendering(source, "</s>"), {"</s>", "<pad>"}, {"</s>"}) == set()
