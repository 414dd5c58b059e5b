"""Small random models whose numbers are as large as a trained model's."""

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from examples.tiny_model import make_tokenizer
from grpo_engine.config.job import ModelSource, SupervisedHyperparameters
from grpo_engine.models.loading import load_policy
from grpo_engine.models.policy import Policy
from tests.engine.conftest import waken
from tests.engine.injection import CPU

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 512,
}


def write_model(
    folder: Path, kind: str, *, largest_logit: float, layers: int, vocab_size: int | None = None, **more: Any
) -> Path:
    """A model of this configuration class whose final norm is scaled until its largest logit is this."""
    tokenizer = make_tokenizer()
    special = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 0}
    shape = {**SIZES, **special, "num_hidden_layers": layers, "vocab_size": vocab_size or len(tokenizer)}
    config: PreTrainedConfig = getattr(transformers, kind)(**{**shape, **more})
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # fresh biases are 0 and fresh norms 1
                parameter += 0.1 * torch.randn_like(parameter)
        found = model(torch.arange(6, 86)[None]).logits.abs().max()
        model.base_model.norm.weight *= largest_logit / found
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def load(folder: Path, lora: Any, dtype: torch.dtype = torch.bfloat16, **source: Any) -> Policy:
    """The policy; its adapter already does something."""
    settings = SupervisedHyperparameters(lora=lora)  # type: ignore[call-arg]
    model = ModelSource(name="tiny", path=str(folder), **source)
    policy = load_policy(model, settings, CPU, dtype, seed=5)
    waken(policy)
    return policy
