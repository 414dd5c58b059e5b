"""The weights that LoRA on all linear layers trains: linear layers, fused experts and their routers.

PEFT's "all-linear" finds modules only; a mixture of experts keeps its matrices as bare parameters, which PEFT
trains through `target_parameters`. For some families it converts the names itself.
Left out: embeddings, the output layer, convolutions.
"""

import re
from collections import Counter
from collections.abc import Iterator

from peft import LoraConfig, PeftModel
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import _check_lora_target_modules_mamba
from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
from torch import nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming
from transformers.pytorch_utils import Conv1D

from grpo_engine.config.hyperparameters import Lora
from grpo_engine.contract.errors import ConfigError

_NOT_CALLED = ("dt_proj", "router.classifier")
"""Linear layers of Mamba and LongCat. transformers uses their weights without calling them, which bypasses an
adapter."""


def adapter_shape(model: PreTrainedModel, lora: Lora) -> LoraConfig:
    """PEFT's configuration of a fresh adapter. Raises ConfigError for dropout on experts."""
    matrices = _matrices(model)
    fused = sorted({_in_layer(name) for name, module, each in matrices if _is_fused(name, module, each)})
    is_everything = lora.target_modules == "all-linear"
    named = [] if is_everything else [each for each in lora.target_modules if _matches(each, fused)]
    modules = "all-linear" if is_everything else [each for each in lora.target_modules if each not in named]
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]
        lora_dropout=lora.dropout,
        target_modules=modules,
        target_parameters=named or None,
        task_type="CAUSAL_LM",
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
    )
    config.exclude_modules = _not_wrapped(model, config) or None
    convert_peft_config_for_transformers(config, model, None)
    chosen = set(config.target_parameters or ())
    if is_everything:
        chosen |= {each for each in fused if not any(_matches(given, [each]) for given in chosen)}
    chosen |= _displaced(model, config, lora)
    if chosen and lora.dropout:
        raise ConfigError(
            f"lora.dropout is {lora.dropout}, but PEFT trains a model's experts without dropout only: "
            + ", ".join(sorted(chosen)),
            hint="Set lora.dropout to 0, or name layers without experts in lora.target_modules.",
        )
    config.target_parameters = sorted(chosen) or None
    return config


def _not_wrapped(model: PreTrainedModel, config: LoraConfig) -> list[str]:
    """Linear layers that PEFT wraps without effect, wrongly (routers with two results, products by group) or
    not at all (Mamba's), those whose matrices it would not load again, and those that share a matrix."""
    found, renamed, shared = set(), _renamed_when_read(model), _shared(model)
    for name, module in model.named_modules():
        leaf = name.rpartition(".")[2]
        try:
            _check_lora_target_modules_mamba(config, model, leaf)
            is_refused = f".{name}".endswith(tuple(f".{each}" for each in _NOT_CALLED))
        except ValueError:
            is_refused = True
        if isinstance(module, nn.Linear) and (is_refused or _is_router(module) or _is_grouped(module)):
            found.add(leaf)
        elif f"{name}.weight" in renamed or name in shared:
            found.add(_in_layer(name))
    return sorted(found)


def _shared(model: PreTrainedModel) -> set[str]:
    """Names of linear layers that use another one's matrix, as blocks of Zamba2 do.

    Each would get an adapter of its own, and merging would add all of them to the one matrix.
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    uses = Counter(id(module.weight) for module in layers.values())
    return {name for name, module in layers.items() if uses[id(module.weight)] > 1}


def _renamed_when_read(model: PreTrainedModel) -> set[str]:
    """Weights whose names in memory transformers would change if they were names in a file.

    PEFT changes the names in an adapter in the same way, and ignores those that the model does not have.
    """
    conversions = get_model_conversion_mapping(model)
    renamings = [each for each in conversions if isinstance(each, WeightRenaming)]
    found = set()
    for name, _ in model.named_parameters():
        renamed = name
        for each in renamings:
            renamed, _ = each.rename_source_key(renamed)
        if renamed != name:
            found.add(name)
    return found


def _displaced(model: PreTrainedModel, config: LoraConfig, lora: Lora) -> set[str]:
    """Linear layers that PEFT's conversion has dropped, because the experts have the same names.

    These are dense layers and shared experts of a mixture. Returns the names of their weights, through which
    PEFT can train them.
    """
    kept, given = config.target_modules, lora.target_modules
    if kept is None or isinstance(kept, str):
        return set()
    linear = {name.removesuffix(".weight") for name, module, _ in _matrices(model) if _is_linear(module)}
    wanted = {
        name for name in linear if given == "all-linear" or any(_matches(each, [name]) for each in given)
    }
    return {
        f"{_in_layer(name)}.weight" for name in wanted if not any(_matches(each, [name]) for each in kept)
    }


def left_out(model: PeftModel) -> dict[str, int]:
    """Name of a matrix in its layer → number of such matrices that the adapter does not train."""
    wrapped = {
        id(getattr(module.get_base_layer(), getattr(module, "parameter_name", "weight")))
        for module in model.modules()
        if isinstance(module, LoraLayer)
    }
    base = model.get_base_model()
    found = (name for name, _, weight in _matrices(base) if id(weight) not in wrapped)
    return dict(Counter(_in_layer(name.replace(".base_layer", "")) for name in found))


def _matrices(model: nn.Module) -> Iterator[tuple[str, nn.Module, nn.Parameter]]:
    """Name, module and weight of every matrix product of the layers."""
    head = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None
    for name, module in model.named_modules():
        for parameter_name, parameter in module.named_parameters(recurse=False):
            path = f"{name}.{parameter_name}"
            is_router = _is_router(module) and parameter.ndim == 2
            is_experts = _is_stack(module, parameter)
            is_product = _is_linear(module) and parameter_name == "weight" and module is not head
            if ".lora_" not in path and (is_product or is_router or is_experts):
                yield path, module, parameter


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | Conv1D) and not _is_router(module)


def _is_stack(module: nn.Module, parameter: nn.Parameter) -> bool:
    """Whether a bare weight holds several matrices. DBRX keeps its experts below each other, in two
    dimensions, and reads them from outside their module, which PEFT's wrapper does not allow."""
    is_dbrx = type(module).__name__ == "DbrxExpertGLU"
    return is_dbrx or (parameter.ndim == 3 and not isinstance(module, nn.modules.conv._ConvNd))


def _is_fused(name: str, module: nn.Module, weight: nn.Parameter) -> bool:
    """Whether PEFT can train the weight as a parameter: of experts or a router.

    Other bare weights, such as the gates of a recurrent block, are no stacks of linear layers.
    """
    is_experts = "expert" in f"{name} {type(module).__name__}".lower()
    return _is_router(module) or (is_experts and weight.ndim == 3)


def _is_router(module: nn.Module) -> bool:
    return "Router" in type(module).__name__


def _is_grouped(module: nn.Module) -> bool:
    """Whether each group of inputs has its own product (DeepSeek-V4); PEFT would multiply by all of them."""
    return "GroupedLinear" in type(module).__name__


def _in_layer(name: str) -> str:
    """`model.layers.3.mlp.experts.down_proj` → `mlp.experts.down_proj`."""
    return re.split(r"\.\d+\.", name)[-1]


def _matches(given: str, names: list[str]) -> bool:
    """Whether PEFT finds one of the parameters by the given end of its name."""
    return any(name == given or name.endswith(f".{given}") for name in names)
