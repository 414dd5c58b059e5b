"""Loads models and policies from a folder, or from the hub at a pinned revision.

Safetensors only, and no remote code.
"""

from pathlib import Path
from typing import Any, Literal, cast

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from grpo_engine.config.job import Hyperparameters, ModelSource
from grpo_engine.contract.errors import ModelError
from grpo_engine.files.fingerprint import fingerprint_of_adapter, refuse_other_base
from grpo_engine.files.readable import unreadable_file
from grpo_engine.models import device_memory, lora, quantization
from grpo_engine.models.language_part import refuse_whole
from grpo_engine.models.policy import Policy


def load_base(
    source: ModelSource, dtype: torch.dtype | Literal["auto"], *, has_weights: bool = True, **options: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Base model and tokenizer; "auto": in the number format of its files. Raises ModelError.

    Without weights only the configuration is read, and the model is on the meta device. `options`: further
    arguments of `from_pretrained`.
    """
    _refuse_unreadable(source)
    try:
        refuse_whole(source)
        tokenizer = AutoTokenizer.from_pretrained(source.path, revision=source.revision)
        if not has_weights:
            config = AutoConfig.from_pretrained(source.path, revision=source.revision)
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config, dtype=dtype)
            _use_unaligned_experts(model)
            return model, tokenizer
        model = AutoModelForCausalLM.from_pretrained(
            source.path,
            revision=source.revision,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            **options,
        )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ModelError(f"{source.name} cannot be loaded: {error}") from error
    _refuse_endless(model, tokenizer, source)
    _use_unaligned_experts(model)
    return model, tokenizer


def load_policy(
    source: ModelSource, hyperparameters: Hyperparameters, device: torch.device, dtype: torch.dtype, seed: int
) -> Policy:
    """Base model, tokenizer and adapter on `device` ("meta": no weights, no proof). Raises ModelError."""
    torch.manual_seed(seed)
    full, quantized = hyperparameters.lora == "full", hyperparameters.quantization
    options = quantization.load_options(quantized, dtype, device) if quantized else {}
    model, tokenizer = load_base(
        source, torch.float32 if full else dtype, has_weights=device.type != "meta", **options
    )
    if not quantized:
        device_memory.place(model, source.name, device)
    peft_model = lora.with_adapter(model, source, hyperparameters)
    policy = Policy(
        model if peft_model is None else cast(PreTrainedModel, peft_model.get_base_model()),
        tokenizer,
        source,
        peft_model,
        autocast=full and dtype == torch.bfloat16,
    )
    if source.adapter is not None:
        refuse_other_base(policy.base_fingerprint, fingerprint_of_adapter(Path(source.adapter)))
    if device.type != "meta":
        policy.prove_shared_prompts()
    return policy


def _refuse_unreadable(source: ModelSource) -> None:
    folder = Path(source.path)
    if folder.is_dir() and (reason := unreadable_file(folder)):
        raise ModelError(f"{source.name} cannot be loaded: {reason}")


def _use_unaligned_experts(model: PreTrainedModel) -> None:
    """Avoid torch's grouped products unless the experts' rows are multiples of 16 bytes, as they must be."""
    stacked = (each for name, each in model.named_parameters() if each.ndim == 3 and ".experts." in name)
    if any(size * each.element_size() % 16 for each in stacked for size in each.shape[1:]):
        model.set_experts_implementation("batched_mm")


def _refuse_endless(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: ModelSource) -> None:
    """Require a tokenizer with an end-of-sequence token; replace contradictory generation settings, which
    transformers refuses to save."""
    if len(tokenizer) == len(tokenizer.all_special_ids):
        raise ModelError(f"{source.name} has no tokenizer: its files, such as tokenizer.json, are missing")
    if tokenizer.eos_token_id is None:
        raise ModelError(f"the tokenizer of {source.name} has no end-of-sequence token")
    try:
        model.generation_config.validate(strict=True)
    except ValueError:
        model.generation_config = GenerationConfig(
            eos_token_id=model.generation_config.eos_token_id, pad_token_id=tokenizer.pad_token_id
        )
