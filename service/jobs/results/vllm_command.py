"""The one line that serves a job's result in vLLM.

Boundary: pure text.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from grpo_engine.config.hyperparameters import Lora
from service.jobs.results.manifest import settings_in

MERGED = "merged"
"""`weights` in the manifest beside an adapter that has become part of its base model."""
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""What `--max-lora-rank` may be."""


def serve_line(manifest: Mapping[str, Any], *, name: str, path: str) -> str:
    """`vllm serve …` for what lies unpacked at `path`; empty where a job made no weights."""
    if manifest["method"]["type"] == "training_free":
        return ""
    lora = settings_in(manifest["method"])["hyperparameters"].get("lora")
    if holds_whole_model(manifest):
        return f"vllm serve {shlex.quote(path)} --served-model-name {shlex.quote(name)}"
    asked = lora["rank"] if lora else Lora().rank
    rank = next((each for each in RANKS if each >= asked), RANKS[-1])
    model = manifest["model"]
    revision = f" --revision {shlex.quote(model['revision'])}" if model["revision"] else ""
    module = shlex.quote(f"{name}={path}")
    return (
        f"vllm serve {shlex.quote(model['base'])}{revision} --enable-lora "
        f"--lora-modules {module} --max-lora-rank {rank}"
    )


def holds_whole_model(manifest: Mapping[str, Any]) -> bool:
    """Whether what lies beside it needs no base model: the job trained all weights, or they are merged."""
    lora = settings_in(manifest["method"])["hyperparameters"].get("lora")
    return lora == "full" or manifest.get("weights") == MERGED
