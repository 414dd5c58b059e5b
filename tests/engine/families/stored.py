"""Makes models whose files hold quantised weights, as the hub's gpt-oss (mxfp4) and Qwen3-FP8 do."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.engine.families.catalogue import FAMILIES
from tests.engine.families.models import make_family

FOUR_BITS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
"""Code → value."""
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head", "model.layers.*.self_attn"]}
LARGEST_FP8 = 448.0
NOT_QUANTIZED = ("embed_tokens", "lm_head", "mlp.gate.")

Stored = dict[str, Tensor]


def make_stored(folder: Path, family: str) -> tuple[Path, Stored]:
    """A folder, and the values of its quantised weights."""
    shape = FAMILIES[family].shape
    if family == "gpt-oss":
        shape = {**shape, "intermediate_size": 64}  # blocks have 32 values
    make_family(folder, replace(FAMILIES[family], shape=shape))
    tensors = load_file(folder / "model.safetensors")
    stored, values, config = (_mxfp4 if family == "gpt-oss" else _fp8)(tensors)
    rest = {name: each.bfloat16() for name, each in tensors.items() if name not in values}
    save_file(rest | stored, folder / "model.safetensors", metadata={"format": "pt"})
    changed = json.loads((folder / "config.json").read_text()) | {"quantization_config": config}
    (folder / "config.json").write_text(json.dumps(changed | {"dtype": "bfloat16"}))
    return folder, values


def _mxfp4(tensors: Stored) -> tuple[Stored, Stored, dict[str, Any]]:
    """Random blocks in place of the experts [E, I, O], which are stored as [E, O, I]."""
    stored, values = {}, {}
    generator = torch.Generator().manual_seed(0)
    for name in [name for name in tensors if name.endswith((".down_proj", ".gate_up_proj"))]:
        experts, inputs, outputs = tensors[name].shape
        shape = (experts, outputs, inputs // 32)
        blocks = torch.randint(256, (*shape, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(120, 125, shape, generator=generator, dtype=torch.uint8)
        pairs = torch.stack([FOUR_BITS[(blocks & 15).long()], FOUR_BITS[(blocks >> 4).long()]], dim=-1)
        scaled = pairs.flatten(-2) * torch.exp2(scales.float() - 127)[..., None]
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        values[name] = scaled.flatten(-2).transpose(1, 2)
    return stored, values, MXFP4


def _fp8(tensors: Stored) -> tuple[Stored, Stored, dict[str, Any]]:
    stored, values = {}, {}
    for name, each in tensors.items():
        if each.ndim == 2 and not any(part in name for part in NOT_QUANTIZED):
            scale = each.abs().max() / LARGEST_FP8
            blocks = [-(-length // 128) for length in each.shape]
            stored[name] = (each / scale).to(torch.float8_e4m3fn)
            stored[f"{name}_scale_inv"] = scale.expand(blocks).contiguous()
            values[name] = stored[name].float() * scale
    return stored, values, FP8
