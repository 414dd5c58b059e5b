"""This engine's run in a comparison: the real trainer with its own timings. See `bench.trl.side`."""

import tempfile
from pathlib import Path
from typing import Any

import torch

from bench.trl.side import Answer, Spec, Step, answer
from grpo_engine.config.job import RunConfig
from grpo_engine.contract.events import StepFinished
from grpo_engine.run.build import build_loop
from grpo_engine.training.trainer import Trainer


def config_of(spec: Spec) -> RunConfig:
    hyperparameters = {
        "n_steps": spec.steps,
        "prompts_per_step": spec.prompts,
        "group_size": spec.group_size,
        "max_completion_tokens": spec.max_completion_tokens,
        "learning_rate": spec.learning_rate,
        "beta": spec.beta,
        "lora": {"rank": spec.lora_rank, "alpha": 2 * spec.lora_rank} if spec.lora_rank else "full",
        "loss_type": "dapo",
        "warmup_steps": 0,
        "guards": [],
        "checkpoint_interval": 1_000_000,
        "max_skipped_steps": 1_000,
        **spec.ours,
    }
    return RunConfig.model_validate(
        {
            "job_id": "bench",
            "seed": spec.seed,
            "model": {"name": "bench", "path": spec.model},
            "training_file": spec.rows,
            "method": {
                "type": "reinforcement",
                "reinforcement": {"grader": spec.grader, "hyperparameters": hyperparameters},
            },
            "runtime": {
                "device": spec.device,
                "dtype": spec.dtype,
                "sampler": spec.sampler,
                "num_threads": spec.threads,
            },
        }
    )


def run(spec: Spec) -> Answer:
    with tempfile.TemporaryDirectory() as folder:
        trainer = build_loop(config_of(spec), Path(folder)).method
        assert isinstance(trainer, Trainer)
        if spec.lengths == "fixed":
            trainer.policy.stop_set = frozenset()
        before = {name: p.detach().clone() for name, p in trainer.policy.trainable.items()}
        found = Answer(steps=[_step(trainer, step, spec) for step in range(1, spec.steps + 1)])
        found.moved = max(
            float((p.detach() - before[n]).abs().max()) for n, p in trainer.policy.trainable.items()
        )
        if spec.trained:
            trainer.updater.write(Path(spec.trained))
        trainer.close()
    return found


def _step(trainer: Trainer, step: int, spec: Spec) -> Step:
    before = trainer.state.num_tokens
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    *_, last = trainer.step(step)
    metrics: dict[str, Any] = last.metrics  # type: ignore[attr-defined]
    return Step(
        seconds=metrics["step_time"],
        sample_seconds=metrics["timing/sample_seconds"],
        train_seconds=metrics.get("timing/train_seconds", 0.0) if isinstance(last, StepFinished) else 0.0,
        completions=spec.prompts * spec.group_size,
        sampled_tokens=trainer.state.num_tokens - before,
        reward=metrics["reward"],
    )


if __name__ == "__main__":
    answer(run)
