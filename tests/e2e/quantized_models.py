"""Models as users load them: an adapter on its quantised base, a merged export; log-probabilities of both."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig


def on_quantized_base(base: Path, adapter: Path) -> nn.Module:
    """By the model card's snippet. In eval mode, bitsandbytes computes in bfloat16 on some processors."""
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
    model = AutoModelForCausalLM.from_pretrained(base, quantization_config=config)
    return PeftModel.from_pretrained(model, str(adapter)).train()


def completion_logprobs(model: nn.Module, base: Path, groups: Iterable[dict[str, Any]]) -> Tensor:
    """Log-probabilities [N] of the tokens of each group's first completion."""
    tokenizer, found = AutoTokenizer.from_pretrained(base), []
    for group in groups:
        prompt = tokenizer(group["prompt"], add_special_tokens=False).input_ids
        ids = torch.tensor([[*prompt, *group["completions"][0]["token_ids"]]])
        with torch.no_grad():
            logprobs = model(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        found.append(logprobs.gather(1, ids[0, len(prompt) :, None]).squeeze(1))
    return torch.cat(found)
