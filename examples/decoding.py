"""Greedy answers of a model folder, with or without an adapter, using only transformers and PEFT."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

Row = dict[str, Any]


def greedy_tokens(
    model_folder: Path, rows: Sequence[Row], *, adapter: Path | None = None, max_tokens: int
) -> list[list[int]]:
    """Token ids of one greedy completion per row, with the end-of-sequence token, at most `max_tokens`."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder, padding_side="left")
    model: Any = AutoModelForCausalLM.from_pretrained(model_folder)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter)
    model.eval()
    prompts = [
        tokenizer.apply_chat_template(row["messages"], add_generation_prompt=True, tokenize=False)
        for row in rows
    ]
    batch = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
    with torch.inference_mode():
        tokens = model.generate(**batch, max_new_tokens=max_tokens, do_sample=False)
    completions: list[list[int]] = tokens[:, batch["input_ids"].shape[1] :].tolist()
    return [_up_to(completion, tokenizer.eos_token_id) for completion in completions]


def answers(
    model_folder: Path, rows: Sequence[Row], *, adapter: Path | None = None, max_tokens: int
) -> list[str]:
    """The same completions as text, without special tokens."""
    tokens = greedy_tokens(model_folder, rows, adapter=adapter, max_tokens=max_tokens)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    texts: list[str] = tokenizer.batch_decode(tokens, skip_special_tokens=True)
    return texts


def accuracy(texts: Sequence[str], rows: Sequence[Row]) -> float:
    """Share of texts that equal their row's answer."""
    return sum(text.strip() == row["answer"] for text, row in zip(texts, rows, strict=True)) / len(rows)


def _up_to(tokens: list[int], last: int) -> list[int]:
    return tokens[: tokens.index(last) + 1] if last in tokens else tokens
