"""TRL's run in a comparison: its GRPOTrainer with the same settings, timed around its own methods."""

import os
import tempfile
import time
from functools import partial, update_wrapper
from pathlib import Path
from typing import Any

from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer, TrainerCallback

from bench.trl.side import Answer, Spec, Step, answer, read_rows, rewards_of

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

from trl import GRPOConfig, GRPOTrainer


class TimedTrainer(GRPOTrainer):  # type: ignore[misc]
    """The trainer, with its phases timed."""

    sample_seconds = before_training_seconds = 0.0
    tokens = 0

    def _generate(self, *arguments: Any, **named: Any) -> Any:
        started = time.perf_counter()
        made = super()._generate(*arguments, **named)
        self.sample_seconds = time.perf_counter() - started
        return made

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        started = time.perf_counter()
        made = super()._generate_and_score_completions(inputs)
        self.before_training_seconds = time.perf_counter() - started
        self.tokens = int(made["completion_mask"].sum())
        return made


class Clock(TrainerCallback):  # type: ignore[misc]
    """Collects a `Step` per optimiser step."""

    def __init__(self, completions: int) -> None:
        self.completions = completions
        self.steps: list[Step] = []
        self.trainer: TimedTrainer | None = None

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.started = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        assert self.trainer is not None
        seconds = time.perf_counter() - self.started
        self.steps.append(
            Step(
                seconds=seconds,
                sample_seconds=self.trainer.sample_seconds,
                train_seconds=seconds - self.trainer.before_training_seconds,
                completions=self.completions,
                sampled_tokens=self.trainer.tokens,
            )
        )


def run(spec: Spec) -> Answer:
    clock = Clock(spec.prompts * spec.group_size)
    with tempfile.TemporaryDirectory() as folder:
        trainer = TimedTrainer(
            model=spec.model,
            reward_funcs=update_wrapper(partial(_reward, spec), _reward),
            args=GRPOConfig(**_settings(spec, folder)),
            train_dataset=Dataset.from_list(read_rows(spec.rows)),
            processing_class=AutoTokenizer.from_pretrained(spec.model),
            peft_config=_adapter(spec.lora_rank) if spec.lora_rank else None,
            callbacks=[clock],
        )
        clock.trainer = trainer
        trained = {name: p for name, p in trainer.model.named_parameters() if p.requires_grad}
        before = {name: p.detach().clone() for name, p in trained.items()}
        trainer.train()
        rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
        for step, reward in zip(clock.steps, rewards, strict=True):
            step.reward = reward
        if spec.trained:
            trainer.save_model(str(Path(spec.trained) / ("adapter" if spec.lora_rank else "model")))
        moved = max(float((p - before[name]).abs().max()) for name, p in trained.items())
    return Answer(steps=clock.steps, moved=moved)


def _adapter(rank: int) -> LoraConfig:
    return LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")


def _reward(spec: Spec, completions: list[str], target: list[str], **_: Any) -> list[float]:
    return rewards_of(spec, target, completions)


def _settings(spec: Spec, folder: str) -> dict[str, Any]:
    least = "min_tokens" if spec.sampler == "vllm" else "min_new_tokens"
    fixed = {least: spec.max_completion_tokens} if spec.lengths == "fixed" else {}
    vllm = {"use_vllm": True, "vllm_mode": "colocate"} if spec.sampler == "vllm" else {}
    return {
        "output_dir": folder,
        "per_device_train_batch_size": spec.prompts * spec.group_size,
        "num_generations": spec.group_size,
        "max_completion_length": spec.max_completion_tokens,
        "generation_kwargs": fixed,
        "max_steps": spec.steps,
        "learning_rate": spec.learning_rate,
        "lr_scheduler_type": "constant",
        "beta": spec.beta,
        "loss_type": "dapo",
        "max_grad_norm": 1.0,
        "use_cpu": spec.device == "cpu",
        "bf16": spec.dtype == "bfloat16",
        "gradient_checkpointing": False,
        # as in this engine, all weights are trained in float32, under autocast to bfloat16
        "model_init_kwargs": {"dtype": spec.dtype if spec.lora_rank else "float32"},
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "seed": spec.seed,
        **vllm,
        **spec.theirs,
    }


if __name__ == "__main__":
    answer(run)
