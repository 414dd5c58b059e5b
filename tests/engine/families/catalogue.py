"""The families: transformers' own configuration classes at 2 to 4 layers, special tokens, chat templates.

The templates are TRL's copies of the families' own ones. It has none of Mistral, Granite, SmolLM3, Phi-4,
OLMo and GPT-2; these use Qwen2.5's, whose tokens are added to theirs.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
WINDOW = 16
"""Tokens; shorter than the tests' sequences."""
MIXED_WINDOWS = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
CHATML = ("<|im_start|>", "<|im_end|>")
VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
QWEN = ("<|endoftext|>", *CHATML, "<tool_call>", "</tool_call>", "<think>", "</think>")
LLAMA = ("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>")
GEMMA = ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>")
GEMMA4 = ("<pad>", "<eos>", "<bos>", "<|turn>", "<turn|>")
PHI = ("<|endoftext|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
GLM = ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
DEEPSEEK = ("<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>")
HARMONY = ("<|endoftext|>", "<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|return|>", "<|call|>")


@dataclass(frozen=True)
class Family:
    config: str
    """Name of transformers' configuration class."""
    special_tokens: tuple[str, ...]
    """The first one pads."""
    end: str
    """The special token that ends a turn."""
    template: str = "qwen2_5"
    """File in `trl/chat_templates`."""
    shape: dict[str, Any] = field(default_factory=dict)
    """What differs from `SIZES`."""
    begin: str | None = None
    is_tied: bool = False
    forward: Literal["own kernels", "packed", "plain"] = "plain"
    """How the engine computes a training row: `grpo_engine/models/forward.py`."""


FAMILIES: dict[str, Family] = {
    "qwen2.5": Family("Qwen2Config", QWEN, "<|im_end|>", is_tied=True, forward="own kernels"),
    "qwen3": Family("Qwen3Config", QWEN, "<|im_end|>", "qwen3", is_tied=True, forward="own kernels"),
    "qwen3-moe": Family(
        "Qwen3MoeConfig", QWEN, "<|im_end|>", "qwen3_instruct_2507", EXPERTS, forward="packed"
    ),
    "qwen3.5": Family(
        "Qwen3_5TextConfig", (*QWEN, *VISION), "<|im_end|>", "qwen3_5_nothink", LINEAR, is_tied=True
    ),
    "qwen3.5-moe": Family(
        "Qwen3_5MoeTextConfig",
        (*QWEN, *VISION),
        "<|im_end|>",
        "qwen3_5_nothink",
        {**LINEAR, **EXPERTS, "shared_expert_intermediate_size": 16},
    ),
    "llama3": Family(
        "LlamaConfig", LLAMA, "<|eot_id|>", "llama3", begin="<|begin_of_text|>", forward="own kernels"
    ),
    "mistral": Family(
        "MistralConfig",
        ("</s>", "<s>", *CHATML),
        "</s>",
        shape={"sliding_window": WINDOW},
        begin="<s>",
        forward="packed",
    ),
    "mixtral": Family(
        "MixtralConfig",
        ("</s>", "<s>", *CHATML),
        "</s>",
        shape={"num_local_experts": 4},
        begin="<s>",
        forward="packed",
    ),
    "gemma2": Family(
        "Gemma2Config",
        GEMMA,
        "<end_of_turn>",
        "gemma",
        MIXED_WINDOWS,
        begin="<bos>",
        is_tied=True,
        forward="packed",
    ),
    "gemma3": Family(
        "Gemma3TextConfig",
        GEMMA,
        "<end_of_turn>",
        "gemma3",
        MIXED_WINDOWS,
        begin="<bos>",
        is_tied=True,
        forward="packed",
    ),
    "gemma4": Family(
        "Gemma4TextConfig",
        GEMMA4,
        "<turn|>",
        "gemma4_v5",
        {
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 2,
            "global_head_dim": 48,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 512,
        },
        begin="<bos>",
        is_tied=True,
        forward="packed",
    ),
    "phi3": Family("Phi3Config", PHI, "<|end|>", "phi3", {"sliding_window": WINDOW}, forward="packed"),
    "phi4": Family(
        "Phi3Config", (*PHI, *CHATML), "<|im_end|>", shape={"partial_rotary_factor": 0.5}, forward="packed"
    ),
    "granite": Family(
        "GraniteConfig",
        ("<|end_of_text|>", *CHATML),
        "<|end_of_text|>",
        shape={
            "logits_scaling": 8.0,
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.25,
        },
        is_tied=True,
        forward="packed",
    ),
    "smollm3": Family(
        "SmolLM3Config", QWEN, "<|im_end|>", shape={"num_hidden_layers": 4}, is_tied=True, forward="packed"
    ),
    "olmo2": Family("Olmo2Config", ("<|pad|>", "<|endoftext|>", *CHATML), "<|endoftext|>", forward="packed"),
    "olmo3": Family(
        "Olmo3Config",
        ("<|pad|>", "<|endoftext|>", *CHATML),
        "<|im_end|>",
        shape=MIXED_WINDOWS,
        forward="packed",
    ),
    "gpt-oss": Family(
        "GptOssConfig",
        HARMONY,
        "<|return|>",
        "gptoss",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": WINDOW,
            "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
        },
        forward="packed",
    ),
    "glm4-moe": Family(
        "Glm4MoeConfig",
        GLM,
        "<|endoftext|>",
        "glm4moe",
        {
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 20,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
        },
        forward="packed",
    ),
    "deepseek-v3": Family(
        "DeepseekV3Config",
        DEEPSEEK,
        "<｜end▁of▁sentence｜>",
        "deepseekv3",
        {
            "num_key_value_heads": 4,
            "head_dim": 8,
            "q_lora_rank": 24,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 12,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 20,
            "n_shared_experts": 1,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        },
        begin="<｜begin▁of▁sentence｜>",
        forward="packed",
    ),
    "gpt2": Family("GPT2Config", ("<|endoftext|>", *CHATML), "<|endoftext|>", is_tied=True, forward="packed"),
}
