"""The model of a script, its adapter and its quantisation → fields of TRL's `ModelConfig`."""

import ast
from typing import Any

from service.importing.script.bindings import NotConstant
from service.importing.script.constants import Located, source_of
from service.importing.script.script import Script

PEFT_DEFAULTS: dict[str, Any] = {"use_peft": True, "lora_r": 8, "lora_alpha": 8, "lora_dropout": 0.0}
"""Defaults of `LoraConfig`; TRL's own options have other defaults."""
PEFT_FIELDS = {
    "r": "lora_r",
    "target_modules": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save",
    "task_type": "lora_task_type",
    "target_parameters": "lora_target_parameters",
} | {name: name for name in ("lora_alpha", "lora_dropout", "use_rslora", "use_dora")}
PEFT_ONLY: dict[str, tuple[Any, ...]] = {
    "bias": ("none",),
    "init_lora_weights": (True,),
    "inference_mode": (False,),
    "fan_in_fan_out": (False,),
    "use_gradient_checkpointing": (True, False, "unsloth"),
    "random_state": (),
    "loftq_config": (None,),
}
"""Arguments without a field, and the values that change nothing; empty: any."""
WEIGHTS_FIELDS = {
    "revision": "model_revision",
    "torch_dtype": "torch_dtype",
    "dtype": "dtype",
    "attn_implementation": "attn_implementation",
    "trust_remote_code": "trust_remote_code",
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
    "use_cache": "use_cache",
}
WEIGHTS_LEFT = (
    *("device_map", "max_memory", "low_cpu_mem_usage", "offload_folder", "use_safetensors"),
    *("token", "cache_dir", "local_files_only", "force_download"),
    *("max_seq_length", "max_lora_rank", "fast_inference", "gpu_memory_utilization", "disable_log_stats"),
    *("use_gradient_checkpointing", "random_state"),
)
"""Arguments that change nothing of a trained model; Unsloth's are the last two lines."""
LOADING = "the catalogue and the operator decide how to load a model"
UNSLOTH_BITS = ("load_in_4bit", "load_in_8bit", "load_in_16bit", "load_in_fp8", "full_finetuning")
"""Arguments of Unsloth's loader, which loads in 4 bits unless one of them is given."""
QUANTIZATION_FIELDS = {
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
    "bnb_4bit_quant_type": "bnb_4bit_quant_type",
    "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
    "bnb_4bit_quant_storage": "bnb_4bit_quant_storage",
}
NAMES = ("pretrained_model_name_or_path", "model_name")
MOVES = ("to", "cuda", "cpu", "train", "eval")
"""Methods that return the model itself, on another device or in another mode."""


def weights_fields(script: Script, value: Located) -> None:
    """The model's name, and the options that it is loaded with. Raises NotConstant."""
    found = script.constants.followed(value)
    if (moved := _moved(found)) is not None:
        weights_fields(script, moved)
        return
    name = script.callee(found)
    if not isinstance(found.node, ast.Call) or not name:
        script.take("model_name_or_path", value)
    elif name.endswith("get_peft_model"):
        _take_adapted(script, script.arguments(found.node, found.scope, ("model", "peft_config")))
    elif name.endswith("from_pretrained"):
        is_unsloth = name.startswith("unsloth.")
        _take_loaded(script, script.arguments(found.node, found.scope, NAMES[:1]), is_unsloth=is_unsloth)
    else:
        raise NotConstant(value.node, f"`{source_of(found.node)}` is not a model that the script names")


def _take_adapted(script: Script, given: dict[str, Located]) -> None:
    """The arguments of `get_peft_model(…)`, PEFT's or Unsloth's."""
    inner = given.pop("model", None)
    if "peft_config" in given:
        peft_fields(script, given.pop("peft_config"))
    else:
        _take_peft(script, given, {**PEFT_DEFAULTS, "lora_r": 16, "lora_alpha": 16})  # Unsloth's
    if inner is not None:
        weights_fields(script, inner)


def _take_loaded(script: Script, given: dict[str, Located], *, is_unsloth: bool) -> None:
    """The arguments of `from_pretrained(…)`."""
    if is_unsloth:
        is_4bit = not any(each in given for each in UNSLOTH_BITS)
        script.fields |= {"load_in_4bit": is_4bit, "use_bnb_nested_quant": True}
    for argument, expression in given.items():
        if argument in NAMES:
            script.take("model_name_or_path", expression)
        elif argument == "quantization_config":
            quantization_fields(script, expression)
        elif argument in WEIGHTS_FIELDS:
            script.take(WEIGHTS_FIELDS[argument], expression)
        elif argument in WEIGHTS_LEFT:
            script.leaves(argument, expression.node, LOADING)
        else:
            script.differs(argument, expression.node, LOADING)


def _moved(found: Located) -> Located | None:
    """The model in `model.to("cuda")`; None for other expressions."""
    match found.node:
        case ast.Call(func=ast.Attribute(value=ast.Call() | ast.Name() as model, attr=name)) if name in MOVES:
            return Located(model, found.scope)
    return None


def peft_fields(script: Script, value: Located) -> None:
    """The fields of a `LoraConfig(…)`. Raises NotConstant."""
    found = script.constants.followed(value)
    if not isinstance(found.node, ast.Call) or not script.callee(found).endswith("LoraConfig"):
        raise NotConstant(
            value.node, f"`{source_of(found.node)}` is not a LoraConfig(…) that the script writes out"
        )
    given = script.arguments(found.node, found.scope, ()) | script.settings(value)
    _take_peft(script, given, PEFT_DEFAULTS)


def _take_peft(script: Script, given: dict[str, Located], defaults: dict[str, Any]) -> None:
    script.fields |= defaults
    for name, value in given.items():
        if name in PEFT_FIELDS:
            script.take(PEFT_FIELDS[name], value)
        elif name not in PEFT_ONLY:
            script.refuse(name, value.node, f"LoRA here has no {name}: remove it")
        elif PEFT_ONLY[name] and script.constants.value(value) not in PEFT_ONLY[name]:
            script.refuse(name, value.node, f"must be {PEFT_ONLY[name][0]!r}: remove it")


def quantization_fields(script: Script, value: Located) -> None:
    """The fields of a `BitsAndBytesConfig(…)`. Raises NotConstant."""
    found = script.constants.followed(value)
    if not isinstance(found.node, ast.Call) or not script.callee(found).endswith("BitsAndBytesConfig"):
        raise NotConstant(value.node, f"`{source_of(found.node)}` is not a BitsAndBytesConfig(…)")
    settings = script.arguments(found.node, found.scope, ()) | script.settings(value)
    for name, given in settings.items():
        if name in QUANTIZATION_FIELDS:
            script.take(QUANTIZATION_FIELDS[name], given)
