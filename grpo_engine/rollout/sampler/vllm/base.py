"""The base model that vLLM loads if it is not the one in the policy's files.

vLLM (0.32) cannot read weights that bitsandbytes has quantised, and computes differently from the trainer
with files that hold quantised weights. Its copy of the base has the dequantised values, in the job's data
type. So the sampler computes as the trainer does, with the memory of an unquantised base. The language
model inside a vision-language model is also copied, because vLLM would load the whole model.
"""

import copy
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from transformers.core_model_loading import revert_weight_conversion

from grpo_engine.models.policy import Policy
from grpo_engine.models.quantization import dequantized_weights, is_quantized
from grpo_engine.parallel.ranks import Ranks


@contextmanager
def served_base(policy: Policy, run_dir: Path) -> Iterator[dict[str, Any]]:
    """vLLM's arguments that name another base than the policy's; its folder exists only inside the block."""
    if not (is_quantized(policy.model) or policy.stored_format or policy.is_renamed):
        yield {}
        return
    folder = run_dir / f"served-base-{Ranks.current().rank}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        _write_base(policy, folder)
        yield {"model": str(folder), "revision": None, "tokenizer_revision": None}
    finally:
        shutil.rmtree(folder)


def _write_base(policy: Policy, folder: Path) -> None:
    config = copy.deepcopy(policy.model.config)
    if is_quantized(policy.model):
        del config.quantization_config
    config.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    weights = revert_weight_conversion(policy.model, dequantized_weights(policy.model))
    whole = {name: weight.contiguous() for name, weight in weights.items()}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
