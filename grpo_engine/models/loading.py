"""Loads models and policies from a folder, or from the hub at a pinned revision.

Safetensors only, and no remote code.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from grpo_engine.config.job import Hyperparameters, ModelSource
from grpo_engine.contract.errors import ModelError
from grpo_engine.files.fingerprint import fingerprint_of_adapter, refuse_other_base
from grpo_engine.files.model_folder import damage, end_token_fault, unsupported_format
from grpo_engine.files.readable import unreadable_file
from grpo_engine.models import device_memory, language_part, lora, quantization
from grpo_engine.models.policy import Policy

MISSING = "its files, such as tokenizer.json, are missing"
REFUSALS = (
    *(OSError, ValueError, LookupError, SafetensorError, StrictDataclassError),
    *(TypeError, AttributeError, ArithmeticError, AssertionError),
)
"""Exceptions of transformers for files that it cannot use, such as a contradictory config.json."""
_NUMBER = re.compile(r"\.\d+\.")


@dataclass(frozen=True)
class Base:
    """A base model."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    unused_weights: tuple[str, ...] = ()
    """Weights of further layers in its files, for which config.json has no layer."""
    stored_format: str | None = None
    """Format of the quantised weights in its files, which were converted; None: they are unquantised."""
    is_renamed: bool = False
    """Whether its weights have other names in its files, which hold a whole vision-language model."""


def load_base(
    source: ModelSource, dtype: torch.dtype | Literal["auto"], *, has_weights: bool = True, **options: Any
) -> Base:
    """Base model and tokenizer; "auto": in the number format of its files. Raises ModelError.

    Without weights only the configuration is read, and the model is on the meta device. `options`: further
    arguments of `from_pretrained`.
    """
    try:
        _refuse_unreadable(source)
        config = AutoConfig.from_pretrained(source.path, revision=source.revision, trust_remote_code=False)
        part = language_part.loading_options(source, config)
        _refuse_format(source, config, options)
        stored = quantization.stored_format(config)
        tokenizer = _tokenizer(source)
        if not has_weights:
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(part.get("config", config), dtype=dtype)
            language_part.remember_place(model, config)
            _use_unaligned_experts(model)
            return Base(model, tokenizer)
        model, report = AutoModelForCausalLM.from_pretrained(
            source.path,
            revision=source.revision,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below with their names
            **quantization.conversion_options(stored),
            **part,
            **options,
        )
    except REFUSALS as error:
        raise ModelError(f"{source.name} cannot be loaded: {_in_short(error)}") from error
    if reason := _misfit(model, report):
        raise ModelError(f"{source.name} cannot be loaded: {reason}")
    _refuse_endless(model, tokenizer, source)
    _use_unaligned_experts(model)
    if stored is not None:
        quantization.finish_conversion(model, dtype)
    language_part.remember_place(model, config)
    if part:
        language_part.detach(model)
    unused = tuple(_of_further_layers(model, report["unexpected_keys"]))
    return Base(model, tokenizer, unused, stored, is_renamed=bool(part))


def load_policy(
    source: ModelSource, hyperparameters: Hyperparameters, device: torch.device, dtype: torch.dtype, seed: int
) -> Policy:
    """Base model, tokenizer and adapter on `device` ("meta": no weights, no proof). Raises ModelError."""
    torch.manual_seed(seed)
    full, quantized = hyperparameters.lora == "full", hyperparameters.quantization
    options = quantization.load_options(quantized, dtype, device) if quantized else {}
    base = load_base(source, torch.float32 if full else dtype, has_weights=device.type != "meta", **options)
    if not quantized:
        device_memory.place(base.model, source.name, device)
    peft_model = lora.with_adapter(base.model, source, hyperparameters)
    policy = Policy(
        base.model if peft_model is None else cast(PreTrainedModel, peft_model.get_base_model()),
        base.tokenizer,
        source,
        peft_model,
        autocast=full and dtype == torch.bfloat16,
    )
    policy.unused_weights, policy.stored_format = base.unused_weights, base.stored_format
    policy.is_renamed = base.is_renamed
    if source.adapter is not None:
        refuse_other_base(policy.base_fingerprint, fingerprint_of_adapter(Path(source.adapter)))
    if device.type != "meta":
        policy.prove_shared_prompts()
    return policy


def _refuse_format(source: ModelSource, config: PreTrainedConfig, options: Mapping[str, Any]) -> None:
    again = "quantization_config" in options
    if reason := unsupported_format(config.to_dict(), is_quantized_again=again):
        raise ModelError(f"{source.name} cannot be loaded: {reason}")


def _tokenizer(source: ModelSource) -> PreTrainedTokenizerBase:
    try:
        return cast(
            PreTrainedTokenizerBase, AutoTokenizer.from_pretrained(source.path, revision=source.revision)
        )
    except ValueError as error:
        folder = Path(source.path)
        if folder.is_dir() and not (folder / "tokenizer.json").exists():
            raise ModelError(f"{source.name} has no tokenizer that can be loaded: {MISSING}") from error
        raise


def _in_short(error: Exception) -> str:
    """The reason in one line, without the advice that transformers adds for the owner of the environment.

    Exceptions of Python itself often say nothing without their name.
    """
    reason = " ".join(str(error).partition("\n\n")[0].split())
    is_named = isinstance(error, LookupError | TypeError | AttributeError | ArithmeticError | AssertionError)
    return f"{type(error).__name__}: {reason}" if is_named else reason


def _refuse_unreadable(source: ModelSource) -> None:
    folder = Path(source.path)
    if folder.is_dir() and (reason := unreadable_file(folder) or damage(folder)):
        raise ModelError(f"{source.name} cannot be loaded: {reason}")


def _misfit(model: PreTrainedModel, report: Mapping[str, Any]) -> str | None:
    """Why the weights of the files are not those of config.json; transformers draws others at random."""
    kind = type(model).__name__
    for name, found, expected in sorted(report["mismatched_keys"]):
        return f"{name} has the shape {list(found)}; its config.json ({kind}) requires {list(expected)}"
    if missing := report["missing_keys"]:
        first = min(missing)
        return f"its files lack {len(missing)} weights that config.json ({kind}) requires, such as {first}"
    return None


def _of_further_layers(model: PreTrainedModel, unexpected: Iterable[str]) -> list[str]:
    """The weights that differ from one of the model's only by the number of a layer."""
    kinds = {_NUMBER.sub(".#.", name) for name in model.state_dict()}
    return sorted(name for name in unexpected if _NUMBER.sub(".#.", name) in kinds)


def _use_unaligned_experts(model: PreTrainedModel) -> None:
    """Avoid torch's grouped products unless the experts' rows are multiples of 16 bytes, as they must be."""
    stacked = (each for name, each in model.named_parameters() if each.ndim == 3 and ".experts." in name)
    if any(size * each.element_size() % 16 for each in stacked for size in each.shape[1:]):
        model.set_experts_implementation("batched_mm")


def _refuse_endless(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: ModelSource) -> None:
    """Require a tokenizer with an end-of-sequence token; replace contradictory generation settings, which
    transformers refuses to save."""
    if len(tokenizer) == len(tokenizer.all_special_ids):
        raise ModelError(f"{source.name} has no tokenizer: {MISSING}")
    if tokenizer.eos_token_id is None:
        raise ModelError(f"the tokenizer of {source.name} has no end-of-sequence token")
    if fault := end_token_fault(model.generation_config.eos_token_id):
        raise ModelError(f"{source.name} {fault}")
    try:
        model.generation_config.validate(strict=True)
    except ValueError:
        model.generation_config = GenerationConfig(
            eos_token_id=model.generation_config.eos_token_id, pad_token_id=tokenizer.pad_token_id
        )
