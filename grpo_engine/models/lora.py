"""LoRA through peft: attach, continue from an earlier adapter, merge while sampling, save.

Left out: LoRA on embeddings and on the output layer.
"""

import copy
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from grpo_engine.config.hyperparameters import Lora
from grpo_engine.config.job import Hyperparameters, ModelSource
from grpo_engine.contract.errors import ConfigError
from grpo_engine.models.language_part import is_part, targets_in_whole, with_whole_names
from grpo_engine.models.lora_targets import adapter_shape
from grpo_engine.models.quantization import is_quantized
from grpo_engine.parallel.shards import fill, gathered

TRAINED = "default"
REFERENCE = "reference"
WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"


def with_adapter(
    model: PreTrainedModel, source: ModelSource, hyperparameters: Hyperparameters
) -> PeftModel | None:
    """The model with the job's adapter, a new one or the earlier one; None if all weights are trained, in
    which case an earlier adapter is merged into them."""
    settings = hyperparameters.lora
    if settings == "full":
        if source.adapter is not None and model.device.type != "meta":
            merged = PeftModel.from_pretrained(model, source.adapter).merge_and_unload()
            merged.requires_grad_(True)
        return None
    if source.adapter is not None:
        return resume_adapter(model, source.adapter, settings)
    return attach(model, settings or Lora())


def attach(model: PreTrainedModel, lora: Lora) -> PeftModel:
    """A fresh adapter on all linear layers (or the named ones); its output starts at zero."""
    try:
        return cast(PeftModel, get_peft_model(model, adapter_shape(model, lora), adapter_name=TRAINED))
    except ValueError as error:
        raise ConfigError(f"lora.target_modules: {error}") from error


def resume_adapter(model: PreTrainedModel, folder: str, lora: Lora | None) -> PeftModel:
    """Continue from an earlier job's adapter; a frozen copy of it is the reference.

    Raises ConfigError if `lora` has another rank than the adapter.
    """
    is_meta = model.device.type == "meta"  # the adapter itself is small and is read
    peft_model = PeftModel.from_pretrained(
        model, folder, adapter_name=TRAINED, is_trainable=True, low_cpu_mem_usage=is_meta
    )
    rank = cast(LoraConfig, peft_model.peft_config[TRAINED]).r
    if lora is not None and lora.rank != rank:
        raise ConfigError(
            f"lora.rank is {lora.rank}, but the adapter that this job continues has rank {rank}",
            hint="Remove lora: the job keeps its parent's adapter shape.",
        )
    if is_quantized(model):
        _copy_as_reference(peft_model)
    else:
        peft_model.load_adapter(folder, REFERENCE, is_trainable=False, low_cpu_mem_usage=is_meta)
    peft_model.set_adapter(TRAINED)
    return peft_model


def _copy_as_reference(model: PeftModel) -> None:
    """Add a frozen copy of the trained adapter. PEFT loads no second adapter on quantised layers that it
    trains through `target_parameters`, such as the dense layers of a mixture."""
    config = copy.deepcopy(model.peft_config[TRAINED])
    for layer in lora_layers(model):
        layer.update_layer(REFERENCE, layer.r[TRAINED], lora_alpha=layer.lora_alpha[TRAINED], config=config)
    model.peft_config[REFERENCE] = config
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        trained = re.sub(rf"(\.lora_\w+)\.{REFERENCE}\b", rf"\1.{TRAINED}", name)
        if trained != name:
            parameter.requires_grad_(False).data = parameters[trained].detach().clone()


def largest_rank(model: PeftModel) -> int:
    """Largest rank of the trained adapter's matrices."""
    config = cast(LoraConfig, model.peft_config[TRAINED])
    return max([config.r, *(config.rank_pattern or {}).values()])


def lora_layers(model: PeftModel) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, LoraLayer)]


def mergeable(model: PeftModel) -> bool:
    """Whether merging is possible (plain layers, no weight shared with another) and exact (float32)."""
    base = cast(PreTrainedModel, model.get_base_model())
    shared = base.get_input_embeddings().weight
    layers = [layer.get_base_layer() for layer in lora_layers(model)]
    return all(
        isinstance(layer, torch.nn.Linear | Conv1D)
        and layer.weight.dtype == torch.float32
        and layer.weight is not shared
        for layer in layers
    )


@contextmanager
def merged(model: PeftModel) -> Iterator[None]:
    """Inside the block, the adapter is part of the weights, so the model is as fast as the base model.

    The original base weights are restored afterwards, so nothing drifts.
    """
    layers = lora_layers(model)
    kept = [layer.get_base_layer().weight.data for layer in layers]
    with model.disable_adapter():
        for layer, weight in zip(layers, kept, strict=True):
            layer.get_base_layer().weight.data = weight + layer.get_delta_weight(TRAINED).to(weight.dtype)
        try:
            yield
        finally:
            for layer, weight in zip(layers, kept, strict=True):
                layer.get_base_layer().weight.data = weight


@contextmanager
def reference_adapter(model: PeftModel) -> Iterator[None]:
    """Inside the block, the model is the frozen reference: the earlier adapter, or no adapter."""
    if REFERENCE not in model.peft_config:
        with model.disable_adapter():
            yield
        return
    model.set_adapter(REFERENCE, inference_mode=True)
    try:
        yield
    finally:
        model.set_adapter(TRAINED)


def save_adapter(model: PeftModel, folder: Path, base_name: str, revision: str | None) -> None:
    """Save the adapter in PEFT's layout; equal weights give equal bytes. Every rank of a sharded model must
    call it."""
    write_adapter(model, adapter_tensors(model), folder, base_name, revision)


def adapter_tensors(model: PeftModel) -> dict[str, Tensor]:
    """The trained adapter under PEFT's names, whole, on the CPU; every rank must call it."""
    return {name: gathered(each).detach().cpu().contiguous() for name, each in sorted(_state(model).items())}


def _state(model: PeftModel) -> dict[str, Tensor]:
    """The trained adapter's parameters under PEFT's names."""
    return get_peft_model_state_dict(model, adapter_name=TRAINED, save_embedding_layers=False)


def write_adapter(
    model: PeftModel, tensors: dict[str, Tensor], folder: Path, base_name: str, revision: str | None
) -> None:
    """Write the result of `adapter_tensors` in PEFT's layout."""
    folder.mkdir(parents=True, exist_ok=True)
    base = cast(PreTrainedModel, model.get_base_model())
    save_file(with_whole_names(base, tensors), folder / WEIGHTS_FILE, metadata={"format": "pt"})
    config = model.peft_config[TRAINED].to_dict()
    config["target_modules"] = _in_any_model(base, config["target_modules"])
    config |= {"base_model_name_or_path": base_name, "revision": revision, "inference_mode": True}
    text = json.dumps(config, indent=2, sort_keys=True, default=_plain)
    (folder / CONFIG_FILE).write_text(text + "\n")


def _in_any_model(base: PreTrainedModel, targets: Any) -> Any:
    """Names of layers without the path to them, which is longer if the model is inside another."""
    if isinstance(targets, str):
        return targets
    names = {re.sub(r"^model\.(?=layers\.)", "", each) for each in targets}
    return targets_in_whole(names) if is_part(base) else names


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, set) else getattr(value, "value", str(value))


def load_adapter_weights(model: PeftModel, folder: Path) -> None:
    saved = load_file(folder / WEIGHTS_FILE)
    for name, target in _state(model).items():
        fill(target, saved[name])


def lora_dropouts(model: torch.nn.Module) -> list[torch.nn.Dropout]:
    """The dropout layers of the adapter, without those of the base model."""
    return [
        module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Dropout) and ".lora_dropout." in name
    ]
