"""Makes a family's model: random weights with the norms and logits of a trained one, and its tokenizer."""

import importlib.resources
import string
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from tests.engine.families.catalogue import SIZES, Family

LARGEST_LOGIT = 17.0
"""As in trained models; random weights alone give 1 to 3."""
TEXT = [f"{a}+{b}={a + b}. What is the sum of {a} and {b}?" for a in range(10) for b in range(10)]


def make_tokenizer(family: Family) -> PreTrainedTokenizerFast:
    """Byte-level BPE trained on a few sums, with the family's special tokens and chat template.

    The special tokens are the last ones, as in most families.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + 40, special_tokens=[], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([*TEXT, string.printable], trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in family.special_tokens])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=family.special_tokens[0],
        eos_token=family.end,
        bos_token=family.begin,
        chat_template=chat_template(family),
    )


def chat_template(family: Family) -> str | None:
    """None in the environment of vLLM, which has no TRL."""
    if find_spec("trl") is None:
        return None
    return (importlib.resources.files("trl") / "chat_templates" / f"{family.template}.jinja").read_text()


def make_config(family: Family, tokenizer: PreTrainedTokenizerFast) -> PreTrainedConfig:
    tokens = {
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    settings = {**SIZES, **tokens, "tie_word_embeddings": family.is_tied, "dtype": "float32", **family.shape}
    if family.config == "GPT2Config":
        no_dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        settings = {**settings, **no_dropout, "n_positions": settings["max_position_embeddings"]}
        del settings["max_position_embeddings"], settings["num_key_value_heads"], settings["head_dim"]
    made: PreTrainedConfig = getattr(transformers, family.config)(**settings)
    return made


def make_family(folder: Path, family: Family, seed: int = 0) -> Path:
    """Write the family's model and tokenizer to `folder` and return it."""
    tokenizer = make_tokenizer(family)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(make_config(family, tokenizer))
        _vary(model)
        _scale_logits(model)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _vary(model: PreTrainedModel) -> None:
    """Give norms and biases, which start as constants, the spread of trained ones."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 or name.endswith("bias"):
                parameter += 0.2 * torch.randn(parameter.shape)


def final_norm(model: PreTrainedModel) -> Tensor:
    base: Any = model.base_model
    return (base.norm if hasattr(base, "norm") else base.ln_f).weight


def _scale_logits(model: PreTrainedModel) -> None:
    """Scale the final norm until the largest logit is `LARGEST_LOGIT`; some families add 1 to its weight.

    Repeated, because a soft cap hides how large the logits were.
    """
    norm = final_norm(model)
    offset = float(norm.mean().abs() < 0.5)
    with torch.no_grad():
        for _ in range(16):
            logits = model(torch.arange(40)[None] + 20).logits
            norm.copy_((norm + offset) * (LARGEST_LOGIT / logits.abs().max()) - offset)
