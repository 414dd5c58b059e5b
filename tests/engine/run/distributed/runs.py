"""Runs that tests compare with each other: a job of three steps, and the result of one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from grpo_engine.config.job import RunConfig
from grpo_engine.contract import manifest
from grpo_engine.run.build import build_loop
from tests.engine.conftest import DIGITS

CLOCKS = ("timing/", "perf/", "memory/", "system/", "step_time")


@dataclass(frozen=True)
class Run:
    """The result of a run: the public weights, Adam's moments and its events."""

    folder: Path
    weights: dict[str, torch.Tensor]
    moments: dict[str, torch.Tensor]
    events: list[dict[str, Any]]

    @classmethod
    def of(cls, folder: Path, events: list[dict[str, Any]]) -> Run:
        checkpoint = folder / "checkpoints" / "step-00000003"
        (weights,) = [*checkpoint.glob("adapter/*.safetensors"), *checkpoint.glob("model/*.safetensors")]
        return cls(folder, load_file(weights), moments_of(checkpoint), events)

    @property
    def completions(self) -> list[tuple[Any, ...]]:
        """Sampled tokens, reward and advantage of each, training and evaluation alike, in order."""
        return [
            (event["split"], event["step"], group["row"], each["token_ids"], each["reward"])
            for event in self.events
            if event["type"] == "rollouts"
            for group in event["groups"]
            for each in group["completions"]
        ]

    @property
    def metrics(self) -> list[dict[str, float]]:
        """Of each step and evaluation, without clocks."""
        return [
            {name: value for name, value in event["metrics"].items() if not name.startswith(CLOCKS)}
            for event in self.events
            if event["type"] in ("step_finished", "evaluated")
        ]


def moments_of(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Adam's moments, whole: of one file, or of shards that all are in this folder."""
    if (whole := checkpoint / manifest.MOMENTS).exists():
        return load_file(whole)
    parts: dict[str, list[torch.Tensor]] = {}
    for shard in sorted((checkpoint / manifest.SHARDS).iterdir()):
        for name, part in load_file(shard).items():
            parts.setdefault(name, []).append(part)
    return {name: torch.cat(found) if found[0].dim() else found[0] for name, found in parts.items()}


def config_of(folder: Path, runtime: dict[str, Any], method: dict[str, Any], **source: str) -> RunConfig:
    """A job of three steps with checkpoints after the second and the third."""
    settings = {
        "n_steps": 3,
        "checkpoint_interval": 2,
        "learning_rate": 1e-4,
        "adam_epsilon": 1e-6,
        "lora": {"rank": 4, "alpha": 8},
    }
    (kind, values), more = next(iter(method.items())), {}
    if kind == "reinforcement":
        settings |= {"prompts_per_step": 4, "group_size": 4, "max_completion_tokens": 8, "beta": 0.0}
        more = {"grader": DIGITS}
    method = {"type": kind, kind: {**more, "hyperparameters": {**settings, **values}}}
    return RunConfig.model_validate(
        {
            "job_id": "ftjob-test",
            "seed": 7,
            "model": {"name": "tiny", "path": str(folder / "model"), **source},
            "training_file": str(folder / f"{kind}.jsonl"),
            "validation_file": str(folder / f"{kind}.jsonl"),
            "method": method,
            "runtime": {"device": "cpu", **runtime},
        }
    )


def alone(config: RunConfig, folder: Path) -> Run:
    """The run in this process."""
    trainer = build_loop(config, folder)
    return Run.of(folder, [event.model_dump(mode="json") for event in trainer.run(lambda: False)])
