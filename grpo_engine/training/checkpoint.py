"""Checkpoints of a run, each complete or invisible (`files/atomic_folder.py`).

A checkpoint is valid if its manifest names files of the right size and SHA-256. Loading takes the newest
valid one and reports those it skipped. Nothing is pickled: tensors are safetensors, all else is JSON.
"""

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from grpo_engine.config.job import RunConfig
from grpo_engine.contract import manifest
from grpo_engine.files.atomic_folder import new_checkpoint, seal, step_name, sync
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.training.method import Artifact


@dataclass(frozen=True, slots=True)
class LoopState:
    """The loop's part of a run's state; the method adds its own (`Method.state_dict`)."""

    step: int = 0
    evaluated_step: int = -1
    """Newest evaluated step."""
    best_step: int | None = None
    best_quality: float | None = None
    """Quality of the best evaluation so far (`events.quality`)."""
    without_improvement: int = 0
    """Consecutive evaluations without the improvement that early stopping requires."""
    last_step: int | None = None
    """Step at which a guard or early stopping ends the training; None: after all steps."""
    guards: dict[str, Any] = field(default_factory=dict)
    """Counters and measurements of the guards (`guards.watch`)."""


def config_digest(config: RunConfig) -> str:
    """SHA-256 of the settings that a checkpoint depends on; a checkpoint of another job never loads.

    Paths are left out, because they differ between hosts, and so are defaults: a release that adds a setting
    continues the jobs of the release before it.
    """
    relevant = config.model_dump(mode="json", include={"job_id", "seed", "method"}, exclude_defaults=True)
    relevant["model"] = config.model.name
    return hashlib.sha256(json.dumps(_without_paths(relevant), sort_keys=True).encode()).hexdigest()


def _without_paths(settings: Any) -> Any:
    """The settings without the paths of reward models, which are the only paths in a method."""
    if isinstance(settings, list):
        return [_without_paths(each) for each in settings]
    if not isinstance(settings, dict):
        return settings
    is_located = settings.get("type") == "reward_model"
    return {key: _without_paths(each) for key, each in settings.items() if not (is_located and key == "path")}


def save(
    folder: Path, config: RunConfig, artifact: Artifact, state: LoopState, method_state: dict[str, Any]
) -> Path:
    """Write `folder/step-…` and return it. Every rank must call it.

    Only the first rank writes, unless the artifact is sharded. In that case each rank writes its shard into
    the folder of its host, and the first rank seals its folder when all shards are on disk.
    Raises DiskFullError; earlier checkpoints stay intact.
    """
    path, ranks = folder / step_name(state.step), Ranks.current()
    if not (ranks.is_first or artifact.is_sharded):
        artifact.write(None)
        return path
    wait = ranks.wait if artifact.is_sharded else None
    with new_checkpoint(folder, state.step, wait) as temporary:
        shard = artifact.write(temporary)
        shards = {} if shard is None else _shards_of_all_ranks(temporary, shard)
        if ranks.is_first:
            content = {"loop": asdict(state), "method": method_state}
            (temporary / manifest.STATE).write_text(json.dumps(content, sort_keys=True))
            facts = {"job_id": config.job_id, "step": state.step, "config_sha256": config_digest(config)}
            seal(temporary, {**facts, **artifact.facts()}, shards)
    return path


def _shards_of_all_ranks(folder: Path, shard: Path) -> dict[str, Any]:
    """The manifest's entries of all ranks' shards, once all are on disk; every rank must call it."""
    sync(shard.parent)  # not the whole folder, because the first rank may still be writing there
    own = [(shard.relative_to(folder).as_posix(), manifest.entry_of(shard))]
    return dict(Ranks.current().joined(own))


def load(folder: Path, artifact: Artifact) -> tuple[LoopState, dict[str, Any]]:
    """Restore the artifact; returns the states of the loop and of the method.

    Raises BaseChangedError if the weights were trained on another base model.
    """
    artifact.load(folder)
    found = json.loads((folder / manifest.STATE).read_text())
    return LoopState(**found["loop"]), found["method"]


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


def retain(folder: Path, keep: int, best_step: int | None = None, *, is_sharded: bool = False) -> None:
    """Remove all but the newest `keep` checkpoints and the best one, and leftovers of a killed run.

    `is_sharded`: every host has its own checkpoints; they are removed after `save` has returned on all ranks.
    """
    if not (Ranks.current().is_first or is_sharded):
        return
    best = None if best_step is None else step_name(best_step)
    old = [path for path in sorted(folder.glob("step-*"))[:-keep] if path.name != best]
    for removed in (*old, *folder.glob(".tmp-*")):
        shutil.rmtree(removed, ignore_errors=is_sharded)  # ranks of one host remove the same folders
