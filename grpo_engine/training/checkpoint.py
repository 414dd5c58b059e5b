"""Checkpoints that are complete or invisible; `sealing.py` writes them so.

A checkpoint is valid when its manifest names files of the right size and sha256; loading takes the newest
valid one and says what it skipped. Nothing is pickled: weights and moments are safetensors, the rest JSON.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from grpo_engine.config.job import RunConfig
from grpo_engine.contract import manifest
from grpo_engine.files.atomic_folder import new_checkpoint, seal, step_name
from grpo_engine.files.fingerprint import refuse_other_base
from grpo_engine.models.policy import Policy
from grpo_engine.models.weights import load_weights, trained_weights, write_weights
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.process.fault_points import fault_point
from grpo_engine.training.optimizer import Optimizer


@dataclass(frozen=True, slots=True)
class State:
    """All that a run needs beside weights and moments to go on as if never interrupted.

    Every seed is a function of (seed, step), and so is the data cursor where no curriculum moves it.
    """

    step: int = 0
    policy_version: int = 0
    num_tokens: int = 0
    skipped_in_a_row: int = 0
    evaluated_step: int = -1
    """Newest evaluated step."""
    beta: float | None = None
    """Where it was adapted or raised; None: as configured."""
    prompts: dict[str, Any] = field(default_factory=dict)
    """Of the prompt source, where the order depends on what happened."""
    baseline: dict[str, dict[str, float]] = field(default_factory=dict)
    """Evaluated set → row → reward before step 1; rows that could not be scored are left out."""
    best_step: int | None = None
    best_quality: float | None = None
    """Of the best evaluation so far (`events.quality`)."""
    without_improvement: int = 0
    """Evaluations in a row that early stopping counts."""
    last_step: int | None = None
    """Where a guard or early stopping ends the training; None: after all steps."""
    guards: dict[str, Any] = field(default_factory=dict)
    """What the guards have seen (`guards.watch`)."""


def config_digest(config: RunConfig) -> str:
    """sha256 of what a checkpoint depends on: a checkpoint of another job never loads."""
    relevant = config.model_dump(mode="json", include={"job_id", "seed", "method"})
    relevant["model"] = config.model.name
    return hashlib.sha256(json.dumps(relevant, sort_keys=True).encode()).hexdigest()


def save(
    folder: Path,
    config: RunConfig,
    state: State,
    policy: Policy,
    optimizer: Optimizer,
    versions: dict[str, str],
) -> Path:
    """Write `folder/step-…`. Raises DiskFullError; the checkpoints before it stay intact.

    Every rank calls it, the first one writes: whatever the number of ranks, what is written is whole.
    """
    weights, moments = trained_weights(policy), optimizer.state_tensors()
    path = folder / step_name(state.step)
    if not Ranks.current().is_first:
        return path
    with new_checkpoint(folder, state.step) as temporary:
        write_weights(policy, weights, temporary)
        fault_point("checkpoint.weights_written")
        save_file(moments, temporary / "optimizer.safetensors")
        (temporary / "state.json").write_text(json.dumps(state_dict(state), sort_keys=True))
        facts = {"job_id": config.job_id, "step": state.step, "config_sha256": config_digest(config)}
        seal(temporary, {**facts, "base_fingerprint": policy.base_fingerprint, "versions": versions})
    return path


def state_dict(state: State) -> dict[str, Any]:
    return {name: getattr(state, name) for name in State.__slots__}


def newest_valid(folder: Path, config: RunConfig) -> tuple[Path | None, list[str]]:
    """The newest usable checkpoint, and a sentence for each newer one that was skipped."""
    skipped: list[str] = []
    for candidate in sorted(folder.glob("step-*"), reverse=True):
        try:
            manifest.verify(candidate, config.job_id, config_digest(config))
        except manifest.DamagedCheckpoint as damage:
            skipped.append(f"checkpoint {candidate.name} was skipped: {damage}")
        else:
            return candidate, skipped
    return None, skipped


def load(folder: Path, policy: Policy, optimizer: Optimizer) -> State:
    """Weights, moments and state of a checkpoint that `newest_valid` chose.

    Raises BaseChangedError where the base model is not the one that it was trained on.
    """
    sealed = json.loads((folder / manifest.MANIFEST).read_bytes())
    refuse_other_base(policy.base_fingerprint, sealed.get("base_fingerprint", ""))
    load_weights(policy, folder)
    optimizer.load_state_tensors(load_file(folder / "optimizer.safetensors"))
    return State(**json.loads((folder / "state.json").read_text()))


def retain(folder: Path, keep: int, best_step: int | None = None) -> None:
    """Remove all but the newest `keep` checkpoints and the best one; and what a killed run left behind."""
    if not Ranks.current().is_first:
        return
    best = None if best_step is None else step_name(best_step)
    for old in sorted(folder.glob("step-*"))[:-keep]:
        if old.name != best:
            shutil.rmtree(old)
    for leftover in folder.glob(".tmp-*"):
        shutil.rmtree(leftover)
