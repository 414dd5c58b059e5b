"""Vision-language models: jobs are text-only and train the language model inside.

transformers loads the language model of some of them alone (Qwen3.5); a model that it loads only as a whole
is refused. Other libraries load the whole model, where the language model's weights have other names.
"""

from typing import cast

from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from grpo_engine.config.job import ModelSource
from grpo_engine.contract.errors import ModelError

LAYER = "layers.0."


def refuse_whole(source: ModelSource, config: PreTrainedConfig) -> None:
    """Raise ModelError if the source is no language model and transformers does not load the one inside."""
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    is_wrapper = config.get_text_config() is not config
    if model_class is not None and not (is_wrapper and model_class.config_class is type(config)):
        return
    kind = "a vision-language model" if is_wrapper else "no causal language model"
    reason = f"{source.name} ({config.model_type}) is {kind}"
    raise ModelError(
        f"{reason}, and transformers does not load its language model alone" if is_wrapper else reason,
        hint="Use a text-only model of the family; among vision-language models, Qwen3.5.",
    )


def with_whole_names(model: PreTrainedModel, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """An adapter's tensors under PEFT's names and, if its base is inside another model, under those as well.

    PEFT uses the first on the language model alone; PEFT on the whole model and vLLM use the second.
    """
    inside, outside = (f"base_model.model.{prefix}" for prefix in _prefixes(model))
    if inside == outside:
        return tensors
    renamed = {outside + name.removeprefix(inside): each.clone() for name, each in tensors.items()}
    return tensors | renamed


def _prefixes(model: PreTrainedModel) -> tuple[str, str]:
    """Prefix of the layers' names in memory and in the base's files."""
    for name, parameter in model.named_parameters():
        name = name.replace(".base_layer", "")
        if parameter.ndim == 1 and ".lora_" not in name and LAYER in name:
            (on_disk,) = revert_weight_conversion(model, {name: parameter})
            return name.partition(LAYER)[0], cast(str, on_disk).partition(LAYER)[0]
    return "", ""
