"""Base models and adapters for exports: small real ones, made by transformers and peft."""

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from examples.tiny_model import Family, make_model
from grpo_engine.config.job import ModelSource, RunConfig

IDS = torch.arange(6, 30)[None]


def make_base(folder: Path, family: Family = "qwen3", dtype: torch.dtype = torch.float32) -> Path:
    """A model folder; llama without tied embeddings."""
    make_model(folder, family=family, hidden=32, layers=2, tie_embeddings=family != "llama")
    if dtype != torch.float32:
        AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).save_pretrained(folder)
    return folder


def make_adapter(base: Path, folder: Path, **config: Any) -> Path:
    """A PEFT folder that changes every linear layer."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    is_gpt2 = model.config.model_type == "gpt2"
    given = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "fan_in_fan_out": is_gpt2, **config}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        shape = LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **given)
        get_peft_model(model, shape).save_pretrained(folder, save_embedding_layers=False)
    return folder


def export_of(source: ModelSource, **fields: Any) -> RunConfig:
    """The configuration of an export; `fields`: further ones."""
    given = {"job_id": "ftexport-test", "model": source, "training_file": "", "export": "merged"}
    return RunConfig.model_validate(given | {"method": {"type": "supervised"}} | fields)


def on_quantized_base(base: Path, adapter: Path) -> nn.Module:
    """By the model card's snippet. In eval mode, bitsandbytes computes in bfloat16 on some processors."""
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
    model = AutoModelForCausalLM.from_pretrained(base, quantization_config=config)
    return PeftModel.from_pretrained(model, str(adapter)).train()


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return {name: each for file in folder.glob("*.safetensors") for name, each in load_file(file).items()}


def logits(folder: Path, adapter: Path | None = None) -> torch.Tensor:
    """Of a folder as transformers loads it; with `adapter`, peft applies that."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, str(adapter))
    with torch.no_grad():
        found: torch.Tensor = model(IDS).logits
    return found
