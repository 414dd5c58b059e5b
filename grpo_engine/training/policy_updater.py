"""Optimiser steps on a policy's weights, in micro-batches that fit the device."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.distributed.tensor import DTensor

from grpo_engine.config.job import Hyperparameters
from grpo_engine.contract import manifest
from grpo_engine.files.fingerprint import refuse_other_base
from grpo_engine.models.policy import Policy
from grpo_engine.models.weights import folder_name, load_weights, trained_weights, write_weights
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.parallel.shards import load_shards, save_shard, save_tensors
from grpo_engine.process.fault_points import fault_point
from grpo_engine.training.micro_batch_budget import MicroBatchBudget
from grpo_engine.training.optimizer import Optimizer, learning_rate_at
from grpo_engine.training.run_description import library_versions

T = TypeVar("T")


class PolicyUpdater:
    """Trains a policy; an `Artifact` of the run."""

    def __init__(
        self, policy: Policy, hyperparameters: Hyperparameters, token_budget: int | None, total_steps: int
    ) -> None:
        """`token_budget`: tokens per micro-batch; None: derived from the device."""
        self.policy = policy
        self.hyperparameters = hyperparameters
        self.total_steps = total_steps
        self.optimizer = Optimizer(policy.trainable, hyperparameters)
        self.budget = MicroBatchBudget(policy, token_budget)

    def update(
        self, step: int, gradients: Callable[[int], dict[str, float]], rows: Sequence[int]
    ) -> dict[str, float]:
        """One optimiser step; returns the metrics of `gradients(token_budget)` and its own.

        Raises NonFiniteError, naming the dataset `rows`, and DeviceMemoryError.
        """
        metrics = self.in_micro_batches(step, gradients)
        Ranks.current().reduce(self.policy.trainable.values())
        learning_rate = learning_rate_at(step, self.total_steps, self.hyperparameters)
        grad_norm = self.optimizer.step(learning_rate, metrics["loss"], step=step, rows=rows)
        return {**metrics, "learning_rate": learning_rate, "grad_norm": grad_norm}

    def in_micro_batches(self, step: int, compute: Callable[[int], T]) -> T:
        """`compute(token_budget)`, repeated with less memory if the device is too small."""
        return self.budget.run(compute, self.optimizer.clear, step)

    @property
    def folder_name(self) -> str:
        return folder_name(self.policy)

    def facts(self) -> dict[str, Any]:
        return {"base_fingerprint": self.policy.base_fingerprint, "versions": library_versions()}

    @property
    def is_sharded(self) -> bool:
        return any(isinstance(each, DTensor) for each in self.policy.trainable.values())

    def write(self, folder: Path | None) -> Path | None:
        weights = trained_weights(self.policy)
        if Ranks.current().is_first and folder is not None:
            write_weights(self.policy, weights, folder)
            fault_point("checkpoint.weights_written")
        moments = self.optimizer.state_tensors()
        if folder is not None and self.is_sharded:
            return save_shard(moments, folder / manifest.SHARDS)
        if folder is not None:
            save_tensors(moments, folder / manifest.MOMENTS)
        return None

    def load(self, folder: Path) -> None:
        """Load weights and moments. Raises BaseChangedError if they were trained on another base model."""
        sealed = json.loads((folder / manifest.MANIFEST).read_bytes())
        refuse_other_base(self.policy.base_fingerprint, sealed.get("base_fingerprint", ""))
        load_weights(self.policy, folder)
        self.load_moments(folder)

    def load_moments(self, folder: Path) -> None:
        """Read Adam's moments; each rank reads its share of them, however they were sharded."""
        shards = folder / manifest.SHARDS
        load_shards(self.optimizer.new_state_tensors, shards if shards.is_dir() else folder)


def seed_step(seed: int, step: int, iteration: int = 0) -> None:
    """Seed torch's generator, which adapter dropout uses, from (seed, step, iteration) only."""
    torch.manual_seed((seed * 1_000_003 + step + iteration * 7_919_000_003) % 2**63)
