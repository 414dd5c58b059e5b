"""The command that serves a job's result in vLLM."""

import os
import shlex
from collections.abc import Mapping
from typing import Any

from grpo_engine.config.hyperparameters import VLLM_RANKS, Lora
from service.jobs.results.manifest import settings_in

MERGED = "merged"
"""Value of `weights` in the manifest of an adapter that was merged into its base model."""


def serve_line(manifest: Mapping[str, Any], *, name: str, path: str) -> str:
    """`vllm serve …` for a result unpacked at `path`; empty for a job without weights.

    A base that is another job's result is expected beside it.
    """
    if manifest["method"]["type"] == "training_free":
        return ""
    lora = settings_in(manifest["method"])["hyperparameters"].get("lora")
    if holds_whole_model(manifest):
        return f"vllm serve {shlex.quote(path)} --served-model-name {shlex.quote(name)}"
    trained = manifest["engine"].get("adapter_rank") or (lora["rank"] if lora else Lora().rank)
    rank = next((each for each in VLLM_RANKS if each >= trained), VLLM_RANKS[-1])
    model = manifest["model"]
    revision = f" --revision {shlex.quote(model['revision'])}" if model["revision"] else ""
    module = shlex.quote(f"{name}={path}")
    return (
        f"vllm serve {shlex.quote(base_path(model, path))}{revision} --enable-lora "
        f"--lora-modules {module} --max-lora-rank {rank}"
    )


def base_path(model: Mapping[str, Any], path: str) -> str:
    """The base's name, or its path beside the adapter at `path` if it is another job's result."""
    if model.get("base_place") != "job":
        return str(model["base"])
    return os.path.normpath(os.path.join(path, "..", model["base"]))


def holds_whole_model(manifest: Mapping[str, Any]) -> bool:
    """Whether the weights need no base model: the job trained all of them, or they are merged."""
    lora = settings_in(manifest["method"])["hyperparameters"].get("lora")
    return lora == "full" or manifest.get("weights") == MERGED
