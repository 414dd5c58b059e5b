"""Small vision-language models around a family's language model."""

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForImageTextToText

from tests.engine.families.catalogue import EXPERTS, FAMILIES, LINEAR, MIXED_WINDOWS, SIZES
from tests.engine.families.models import make_tokenizer

VISION = {"hidden_size": 32, "intermediate_size": 32, "patch_size": 4}
QWEN_VISION = {**VISION, "depth": 1, "num_heads": 2, "out_hidden_size": 32}
OTHER_VISION = {**VISION, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16}
ROTARY = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
WRAPPERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Qwen3_5Config": (LINEAR, QWEN_VISION),
    "Qwen2_5_VLConfig": (
        {"rope_parameters": ROTARY, "head_dim": 8},
        {**QWEN_VISION, "fullatt_block_indexes": [0], "window_size": 16},
    ),
    "Qwen3VLConfig": (
        {"rope_parameters": {**ROTARY, "mrope_interleaved": True}},
        {**QWEN_VISION, "deepstack_visual_indexes": [0]},
    ),
    "Qwen3VLMoeConfig": (
        {"rope_parameters": ROTARY, **EXPERTS},
        {**QWEN_VISION, "deepstack_visual_indexes": [0]},
    ),
    "LlavaConfig": (
        {"model_type": "llama"},
        {**OTHER_VISION, "model_type": "clip_vision_model", "projection_dim": 32},
    ),
    "Gemma3Config": (MIXED_WINDOWS, OTHER_VISION),
    "Gemma4Config": (
        {**MIXED_WINDOWS, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "global_head_dim": 32},
        OTHER_VISION,
    ),
    "Llama4Config": (
        {"num_local_experts": 2, "intermediate_size_mlp": 48, "attention_chunk_size": 16},
        {**OTHER_VISION, "vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32},
    ),
    "Mistral3Config": ({"model_type": "mistral"}, {**OTHER_VISION, "model_type": "pixtral"}),
}
"""Configuration class → what its language model and its vision model differ in."""
UNTIED = ("Mistral3Config",)
"""Classes whose published model has an output layer of its own; their default is to share the embedding."""


def make_wrapper(folder: Path, kind: str) -> Path:
    """Write the model to `folder` and return it."""
    tokenizer = make_tokenizer(FAMILIES["qwen3.5"])
    language, vision = WRAPPERS[kind]
    text = {
        **SIZES,
        **language,
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = getattr(transformers, kind)(text_config=text, vision_config=vision, dtype="float32")
    config.tie_word_embeddings &= kind not in UNTIED
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForImageTextToText.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
