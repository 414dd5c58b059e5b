"""Checks before the first step that all ranks have the same files; each host may have its own copy.

The files are compared before the checkpoint is loaded, because ranks exchange full weights while they load.
"""

import hashlib
from pathlib import Path

from grpo_engine.config.job import RunConfig
from grpo_engine.contract import manifest
from grpo_engine.models.policy import Policy
from grpo_engine.parallel.agreement import checksum_of, require_agreement
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.training.checkpoint import config_digest


def require_same_files(config: RunConfig, policy: Policy | None, checkpoint: Path | None) -> None:
    """Raises RanksDisagreeError unless the files of all ranks are equal; their paths may differ.

    `checkpoint`: the checkpoint to resume from; None: the run starts from the beginning.
    """
    if policy is None or Ranks.current().world == 1:
        return
    facts: dict[str, object] = {
        "step": 0,
        "configuration": config_digest(config)[:12],
        "datasets": _digest_of_datasets(config)[:12],
        "base model": policy.base_fingerprint[:12],
        "checkpoint": "none",
    }
    if checkpoint is not None:
        facts["step"] = int(checkpoint.name.removeprefix("step-"))
        facts["checkpoint"] = manifest.sha256_of(checkpoint / manifest.MANIFEST)[:12]
    require_agreement(facts)


def require_same_weights(policy: Policy | None) -> None:
    """Raises RanksDisagreeError unless all ranks start with the same weights."""
    if policy is not None and Ranks.current().world > 1:
        require_agreement({"weights": checksum_of(policy.trainable)})


def _digest_of_datasets(config: RunConfig) -> str:
    held_out = [config.validation_file, *(path for _, path in sorted(config.retention_files.items()))]
    digests = [manifest.sha256_of(Path(path)) if path else "" for path in (config.training_file, *held_out)]
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()
