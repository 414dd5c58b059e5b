"""Base models whose linear layers bitsandbytes stores in 4 or 8 bits (QLoRA, arXiv 2305.14314).

Embeddings, norms and the output layer keep the job's data type, and the adapter is float32.
Files with quantised weights in some formats are converted when they are loaded; see `CONVERTED`.
"""

from importlib.util import find_spec
from typing import Any, Literal, cast

import torch
from torch import Tensor
from transformers import (
    BitsAndBytesConfig,
    FineGrainedFP8Config,
    Mxfp4Config,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.pytorch_utils import Conv1D

from grpo_engine.config.hyperparameters import Quantization
from grpo_engine.contract.errors import ConfigError

INSTALL_HINT = "Install the extra `quantization` (bitsandbytes) for the engine, or set quantization to null."


def load_options(quantization: Quantization, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Arguments for transformers' `from_pretrained`. Raises ConfigError if bitsandbytes is not installed."""
    if find_spec("bitsandbytes") is None:
        reason = f"quantization is {quantization}, but bitsandbytes is not installed on this worker"
        raise ConfigError(reason, hint=INSTALL_HINT)
    return {"quantization_config": _config(quantization, dtype), "device_map": {"": device}}


def _config(quantization: Quantization, dtype: torch.dtype) -> BitsAndBytesConfig:
    if quantization == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )


def stored_format(config: PreTrainedConfig) -> str | None:
    """The format of quantised weights in the model's files; None: they are unquantised."""
    stored = getattr(config, "quantization_config", None) or {}
    return cast(str | None, stored.get("quant_method"))


def conversion_options(stored: str | None) -> dict[str, Any]:
    """Arguments for transformers' `from_pretrained` that convert stored quantised weights, also on a GPU that
    could multiply with them: these products have no gradient. Empty for other weights."""
    classes = {"fp8": FineGrainedFP8Config, "mxfp4": Mxfp4Config}
    return {} if stored is None else {"quantization_config": classes[stored](dequantize=True)}


def finish_conversion(model: PreTrainedModel, dtype: torch.dtype | Literal["auto"]) -> None:
    """Give converted weights the data type, and let the model be saved as an unquantised one.

    transformers converts to bfloat16 only. When it saves a model, it reverts conversions; it cannot revert
    these, and would write the experts of all layers of an `mxfp4` model under one name.
    """
    if dtype == torch.float32:
        model.float()
    model._weight_conversions = None  # those of the model's class are used instead


def is_quantized(model: PreTrainedModel) -> bool:
    return getattr(model, "quantization_method", None) is not None


def use_differentiable_products(model: PreTrainedModel) -> None:
    """Make quantised layers on a CPU compute in the job's data type, with gradients, also in eval mode.

    In eval mode bitsandbytes rounds the inputs there: of 8-bit layers to int8, of 4-bit ones to bfloat16 (on
    processors with AVX512-BF16, by a product that silently has no gradient).
    """
    if not is_quantized(model):
        return
    from bitsandbytes.nn import Linear4bit, Linear8bitLt

    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.support_avx512bf16_for_cpu = False
        elif isinstance(module, Linear8bitLt) and module.weight.device.type == "cpu":
            module.train()


def dequantized_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """The base's weights on the host, quantised ones dequantised, shared ones once."""
    found, quantized = {}, is_quantized(model)
    for path, weight in model.named_parameters():
        prefix, _, name = path.rpartition(".")
        if ".lora_" not in path:
            if quantized and name == "weight":
                weight = _values(model.get_submodule(prefix), model.dtype)
            found[path.replace(".base_layer", "")] = weight.detach().cpu()
    return found


def _values(module: Any, dtype: torch.dtype) -> Tensor:
    from bitsandbytes.functional import dequantize_4bit
    from bitsandbytes.nn import Linear4bit, Linear8bitLt

    if isinstance(module, Linear4bit):
        values = dequantize_4bit(module.weight.data, module.weight.quant_state)
    elif isinstance(module, Linear8bitLt):
        scales = module.state.SCB if module.weight.SCB is None else module.weight.SCB
        values = module.weight.data * (scales / 127)[:, None]
    else:
        return module.weight
    return (values.T if issubclass(module.source_cls, Conv1D) else values).to(dtype).contiguous()
