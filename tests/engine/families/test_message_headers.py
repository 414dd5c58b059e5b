"""gpt-oss writes each message after a header, whose words are ordinary tokens."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.engine.realistic import load

CHANNEL = "<|channel|>{}<|message|>"
FINAL = CHANNEL.format("final")
THOUGHT = f"{CHANNEL.format('analysis')}3 + 4 = 7<|end|><|start|>assistant"
ANSWERED = (
    '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 3}<|call|>'
    "<|start|>functions.add to=assistant<|channel|>commentary<|message|>7<|end|><|start|>assistant"
)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (f"{FINAL}7<|return|>", "7"),
        (f"{THOUGHT}{FINAL}7<|return|>", "3 + 4 = 7\n7"),
        (f"{ANSWERED}{FINAL}7<|return|>", '{"a": 3}\n7\n7'),
        ("<|channel|>final", ""),
        ("7<|return|>", "7"),
    ],
)
def test_the_text_of_a_completion_has_no_words_of_headers(
    written: str, text: str, family_folder: Callable[[str], Path]
) -> None:
    policy = load(family_folder("gpt-oss"), {"rank": 4}, torch.float32)
    tokens = policy.tokenizer.encode(written, add_special_tokens=False)
    assert policy.completion_text(tokens) == text
    assert all(text.startswith(policy.decode(tokens[:count])) for count in range(len(tokens)))
