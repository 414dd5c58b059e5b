"""Vision-language models: jobs are text-only and train the language model inside.

transformers loads some of them as their language model (Qwen3.5). For the others in `LANGUAGE_PARTS`, the
engine loads the language model by the names of its weights in the whole model's files. Other libraries load
the whole model, where the weights of an adapter have other names.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from grpo_engine.config.job import ModelSource
from grpo_engine.contract.errors import ModelError
from grpo_engine.files.model_folder import LANGUAGE_PARTS

HINT = f"Use a text-only model, or one of these types: {', '.join(LANGUAGE_PARTS)}."
PLACE = "_place_in_whole_model"
"""Attribute of a language model: the path of its layers in the whole model."""
OTHER_PARTS = "vision|visual|audio"
"""Pattern in the names of a whole model's modules that jobs do not train."""
NAMES_ALONE = {
    r"^language_model\.lm_head\.": "lm_head.",
    r"^language_model\.model\.": "model.",
    r"^model\.language_model\.": "model.",
}
"""Names in the whole model's files → names in the language model."""
SAME_ALONE: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2_5_vl": ("qwen2", {}),
    "qwen3_vl": ("qwen3", {}),
    "qwen3_vl_moe": ("qwen3_moe", {"norm_topk_prob": True}),
}
"""Type of a whole model → type and settings of a text model that computes the same without images."""


def loading_options(source: ModelSource, config: PreTrainedConfig) -> dict[str, Any]:
    """transformers' arguments that load the language model inside; empty if it needs none.

    Raises ModelError if the source is not a language model, and none inside it can be loaded.
    """
    model_class, text = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None), config.get_text_config()
    if model_class is not None and (text is config or model_class.config_class is not type(config)):
        return {}
    if text is config:
        raise ModelError(f"{source.name} ({config.model_type}) is not a causal language model", hint=HINT)
    if config.model_type not in LANGUAGE_PARTS:
        reason = f"{source.name} ({config.model_type}) is a vision-language model"
        raise ModelError(f"{reason} whose language model cannot be loaded alone", hint=HINT)
    if config.model_type in SAME_ALONE:
        kind, settings = SAME_ALONE[config.model_type]
        text = CONFIG_MAPPING[kind](**{**text.to_dict(), "model_type": kind, **settings})
        for name in [name for name in text.rope_parameters if name.startswith("mrope")]:
            del text.rope_parameters[name]  # for positions of images
    text.tie_word_embeddings = config.tie_word_embeddings
    return {"config": text, "key_mapping": NAMES_ALONE}


def detach(model: PreTrainedModel) -> None:
    """Let the model be saved as a text-only one, with names and a class of its own."""
    model._weight_conversions = None
    model.config.architectures = [type(model).__name__]


def remember_place(model: PreTrainedModel, config: PreTrainedConfig) -> None:
    """Note where the language model is inside the whole one of this configuration, if it is inside one."""
    if config.get_text_config() is config:
        return
    # transformers may have no class of the whole model, or lack a package for it
    with suppress(ValueError, ImportError), torch.device("meta"):
        whole = AutoModelForImageTextToText.from_config(config)
        decoder = whole.get_decoder()
        place = next(name for name, module in whole.named_modules() if module is decoder)
        setattr(model, PLACE, f"{place}.")


def is_part(model: PreTrainedModel) -> bool:
    """Whether other libraries may load the whole model instead."""
    return hasattr(model, PLACE)


def targets_in_whole(targets: Iterable[str]) -> str:
    """PEFT's pattern for these matrices in all layers of the model, but not in other parts of the whole."""
    names = sorted({re.sub(r"\d+", r"\\d+", re.escape(each)) for each in targets})
    return rf"(?!.*({OTHER_PARTS})).*\.({'|'.join(names)})"


def with_whole_names(model: PreTrainedModel, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """An adapter's tensors under PEFT's names and, if its base is inside another model, under those as well.

    PEFT uses the first on the language model alone; PEFT on the whole model and vLLM use the second.
    """
    if not is_part(model):
        return tensors
    own = "" if model.base_model is model else f"{model.base_model_prefix}."
    inside, outside = f"base_model.model.{own}", f"base_model.model.{getattr(model, PLACE)}"
    renamed = {outside + name.removeprefix(inside): each.clone() for name, each in tensors.items()}
    return tensors | renamed
