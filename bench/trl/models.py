"""Random models of a given shape, and prompts for them. Nothing is downloaded.

If a model's folder contains `prompts.jsonl`, these are its prompts; otherwise its prompts are random words of
its vocabulary.
"""

import json
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from bench.trl.side import Spec

PROMPTS_FILE = "prompts.jsonl"
PAD, END, UNKNOWN = "<|pad|>", "<|end|>", "<|unknown|>"
POSITIONS = 32_768


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder's sizes, such as `shape:hidden=512,layers=8,heads=8,kv=4,vocab=8192[,inter=1536,head=64]`."""

    hidden: int = 512
    layers: int = 8
    heads: int = 8
    kv: int = 4
    vocab: int = 8192
    inter: int = 0
    """0: three times `hidden`."""
    head: int = 0
    """Size of one head; 0: `hidden / heads`."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError for unknown names and invalid numbers."""
        sizes = dict(part.split("=", 1) for part in text.removeprefix("shape:").split(",") if part)
        unknown = sizes.keys() - set(cls.__dataclass_fields__)
        if unknown:
            raise ValueError(f"unknown sizes: {', '.join(sorted(unknown))}")
        return cls(**{name: int(value) for name, value in sizes.items()})

    def config(self) -> Qwen3Config:
        return Qwen3Config(
            vocab_size=self.vocab,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv,
            head_dim=self.head or self.hidden // self.heads,
            intermediate_size=self.inter or 3 * self.hidden,
            max_position_embeddings=POSITIONS,
            tie_word_embeddings=False,
            eos_token_id=1,
            pad_token_id=0,
            bos_token_id=None,
        )


def words_tokenizer(vocab: int) -> PreTrainedTokenizerFast:
    """A tokenizer with one token per word: `w3 w4 …`."""
    vocabulary = {PAD: 0, END: 1, UNKNOWN: 2, **{f"w{number}": number for number in range(3, vocab)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, unk_token=UNKNOWN
    )


def shape_model(
    folder: Path, shape: Shape, *, dtype: torch.dtype, mean_tokens: float | None, seed: int = 0
) -> Path:
    """Save a random model. `mean_tokens`: its mean completion length; None: it rarely stops."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(shape.config(), dtype=dtype)
    if mean_tokens is not None:
        _make_it_end(model, 1 / mean_tokens)
    model.generation_config = GenerationConfig(eos_token_id=1, pad_token_id=0)
    model.save_pretrained(folder)
    words_tokenizer(shape.vocab).save_pretrained(folder)
    return folder


def make_random_model(spec: Spec, shape: Shape) -> dict[str, Any]:
    """Save random weights of that shape. The device draws them; a CPU needs a minute for 4 billion."""
    config = shape.config()
    config.tie_word_embeddings = True  # as in the Qwen3 models of these sizes
    torch.manual_seed(spec.seed)
    began = time.perf_counter()
    with torch.device(spec.device):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, spec.dtype))
    model.generation_config = GenerationConfig(eos_token_id=1, pad_token_id=0)
    made = time.perf_counter()
    model.save_pretrained(spec.model)
    words_tokenizer(shape.vocab).save_pretrained(spec.model)
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "make_seconds": made - began,
        "save_seconds": time.perf_counter() - made,
    }


@torch.no_grad()
def _make_it_end(model: PreTrainedModel, probability: float) -> None:
    """Scale the output row of the end token until the token has the given mean probability."""
    ids = torch.randint(2, model.config.vocab_size, (4, 64))
    hidden = model.base_model(input_ids=ids).last_hidden_state.flatten(0, 1)
    row = model.get_output_embeddings().weight[1]
    others = model.get_output_embeddings()(hidden).float().exp().sum(-1)
    along = (hidden @ torch.randn_like(row)).float()
    along, direction = along / along.std(), row.clone()
    low, high = 0.0, 40.0
    for _ in range(40):
        middle = (low + high) / 2
        found = float(((middle * along).exp() / (others + (middle * along).exp())).mean())
        low, high = (middle, high) if found < probability else (low, middle)
    solution = torch.linalg.lstsq(hidden.float(), (low * along)[:, None]).solution[:, 0]
    row.copy_(solution.to(direction.dtype))


def random_prompts(
    tokenizer: PreTrainedTokenizerBase, count: int, num_tokens: int, seed: int = 0
) -> list[str]:
    """Texts of about `num_tokens` tokens each."""
    drawn = random.Random(seed)
    special = set(tokenizer.all_special_ids)
    ordinary = [number for number in range(len(tokenizer)) if number not in special]
    texts = []
    for _ in range(count):
        texts.append(str(tokenizer.decode([drawn.choice(ordinary) for _ in range(num_tokens)])))
    return texts


def prompts_of(folder: Path) -> list[dict[str, str]] | None:
    """The prompts in a model's folder: `prompt`, and the `target` that earns the highest reward."""
    path = folder / PROMPTS_FILE
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else None
