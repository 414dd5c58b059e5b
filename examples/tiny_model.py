"""A small random language model in a folder: a real architecture and tokenizer, without a download.

    python -m examples.tiny_model FOLDER [--family llama] [--hidden 64]

One character is one token, so that tokenisation does not affect arithmetic. The folder loads with
`from_pretrained`; its weights are random and its vocabulary is small.
"""

import argparse
import string
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    GPT2Config,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

Family = Literal["qwen3", "llama", "gpt2"]

SPECIAL_TOKENS = ("<|pad|>", "<|end|>", "<|unknown|>", "<|system|>", "<|user|>", "<|assistant|>")
CHARACTERS = string.digits + string.ascii_letters + " \n+-*/=.,?!:;'\"()[]{}<>_%$^\\#&"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    # a tool's result takes the place of a system turn
    "{{ '<|' + ('system' if message['role'] == 'tool' else message['role']) + '|>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
HEAD_SIZE = 32
FOR_ADAPTERS = 5.0
"""Scale of a separate head with which an adapter learns: with 1, no token gets a probability above 0.15."""


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character, after the special tokens. Unknown characters become `<|unknown|>`."""
    vocabulary = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *CHARACTERS))}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[], unk_token="<|unknown|>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        eos_token="<|end|>",
        unk_token="<|unknown|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )


def make_config(
    family: Family, *, vocab_size: int, hidden: int, layers: int, tie_embeddings: bool = True
) -> PreTrainedConfig:
    """The family's configuration at `hidden` units (a multiple of 32) and `layers` layers."""
    common: dict[str, Any] = {
        "vocab_size": vocab_size,
        "eos_token_id": SPECIAL_TOKENS.index("<|end|>"),
        "pad_token_id": SPECIAL_TOKENS.index("<|pad|>"),
        "bos_token_id": None,
        "tie_word_embeddings": tie_embeddings,
        "dtype": "float32",
    }
    heads = hidden // HEAD_SIZE
    if family == "gpt2":
        return GPT2Config(
            n_embd=hidden,
            n_layer=layers,
            n_head=heads,
            n_positions=512,
            # with dropout, sampling and training would compute different log-probabilities
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            **common,
        )
    return {"qwen3": Qwen3Config, "llama": LlamaConfig}[family](
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        head_dim=HEAD_SIZE,
        intermediate_size=3 * hidden,
        max_position_embeddings=512,
        **common,
    )


def make_model(
    folder: str | Path,
    *,
    family: Family = "qwen3",
    hidden: int = 128,
    layers: int = 4,
    seed: int = 0,
    tie_embeddings: bool = True,
    head_scale: float = 1.0,
) -> Path:
    """Write a random model with its tokenizer to `folder` and return it. Equal seeds give equal files.

    `head_scale`: factor of the output embeddings; with 1, logits are so small that no adapter
    makes a token likely.
    """
    folder = Path(folder)
    tokenizer = make_tokenizer()
    config = make_config(
        family, vocab_size=len(tokenizer), hidden=hidden, layers=layers, tie_embeddings=tie_embeddings
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(head_scale)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for file in folder.iterdir():
        # only their owner can read the weights as written, but a container's worker is another user
        file.chmod(0o644)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a small random model into a folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--family", choices=get_args(Family), default="qwen3")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    print(make_model(**vars(parser.parse_args()), tie_embeddings=False, head_scale=FOR_ADAPTERS))


if __name__ == "__main__":
    main()
