"""Model folders as users have them: odd shapes, files in parts or in bfloat16, missing or moved settings."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from tests.engine.families.catalogue import FAMILIES
from tests.engine.families.models import make_family


def in_bfloat16_parts(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")


def without_generation_config(folder: Path) -> None:
    (folder / "generation_config.json").unlink()


def with_template_among_settings(folder: Path) -> None:
    """And without a padding token."""
    file, template = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    settings = {**json.loads(file.read_text()), "chat_template": template.read_text()}
    del settings["pad_token"]
    file.write_text(json.dumps(settings))
    template.unlink()


@dataclass(frozen=True)
class Shape:
    family: str
    differs: dict[str, Any]
    changes: tuple[Callable[[Path], None], ...] = ()
    """What is done to the folder."""
    end: str = ""
    """The tokenizer's end of sequence, if it is not the family's."""


SHAPES = {
    "gpt-oss": Shape(
        "gpt-oss",
        {
            "hidden_size": 40,
            "num_attention_heads": 6,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "num_local_experts": 3,
            "sliding_window": 5,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 150000.0,
                "factor": 16.0,
                "original_max_position_embeddings": 32,
            },
        },
        (in_bfloat16_parts, without_generation_config),
        "<|endoftext|>",
    ),
    "glm4-moe": Shape(
        "glm4-moe",
        {
            "hidden_size": 36,
            "num_attention_heads": 3,
            "num_key_value_heads": 3,
            "head_dim": 20,
            "partial_rotary_factor": 0.4,
            "attention_bias": True,
            "vocab_size": 384,
        },
        (with_template_among_settings, without_generation_config),
    ),
    "gemma2": Shape(
        "gemma2",
        {
            "hidden_size": 42,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 28,
            "attn_logit_softcapping": 4.0,
            "final_logit_softcapping": 9.0,
            "query_pre_attn_scalar": 11,
            "sliding_window": 6,
        },
        (without_generation_config,),
        "<eos>",
    ),
}


def make_shape(folder: Path, shape: Shape) -> Path:
    """Write the model to `folder` and return it."""
    family = FAMILIES[shape.family]
    differs = {**family.shape, **shape.differs}
    make_family(folder, replace(family, shape=differs, end=shape.end or family.end))
    for change in shape.changes:
        change(folder)
    return folder
