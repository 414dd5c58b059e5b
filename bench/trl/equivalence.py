"""Measures the largest differences between TRL's GRPOTrainer and this engine over the same steps.

    python -m bench.trl.equivalence [FILE]

Both train the same tiny random model on the same prompts, completions and rewards with the same AdamW. They
are compared after each optimiser step. Writes a table to FILE (bench/equivalence.md) and exits with 1 if an
error exceeds its tolerance. TRL is a development dependency.
"""

import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from bench.trl.equivalence_cases import CASES, GROUP_SIZE, MAX_TOKENS, PROMPTS, STEPS, Case, given_steps
from examples.tiny_model import make_model
from grpo_engine.config.job import RunConfig
from tests.engine.injection import injected_trainer

ADAM_EPSILON = 1e-6
"""Adam divides a gradient by its own size. So a weight whose gradient is only rounding error (below 1e-8)
would move a whole step in a random direction; with the default of 1e-8, one weight in ten thousand does."""
TOLERANCES = {"advantages": 1e-6, "loss": 1e-6, "gradient norm": 1e-5, "parameters": 1e-6}


@dataclass
class Seen:
    """An engine's results; one entry per optimiser step (advantages: one per batch)."""

    advantages: list[list[float]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    start: dict[str, torch.Tensor] = field(default_factory=dict)
    end: dict[str, torch.Tensor] = field(default_factory=dict)


def ours(case: Case, model: Path) -> Seen:
    trainer = injected_trainer(_config(case, model), given_steps(case))
    seen = Seen(start=_copied(trainer.policy.trainable))
    optimizer, terms = trainer.updater.optimizer, trainer._terms
    step_optimizer = optimizer.step

    def recorded_step(learning_rate: float, loss: float, **where: Any) -> float:
        seen.losses.append(loss)
        seen.gradient_norms.append(step_optimizer(learning_rate, loss, **where))
        return seen.gradient_norms[-1]

    def recorded_terms(scored: Any) -> Any:
        seen.advantages.append([value for group in scored for value in group.advantages])
        return terms(scored)

    optimizer.step = recorded_step  # type: ignore[method-assign]
    trainer._terms = recorded_terms  # type: ignore[assignment,method-assign]
    for step in range(1, STEPS + 1):
        list(trainer.step(step))
    seen.end = _copied(trainer.policy.trainable)
    return seen


def _config(case: Case, model: Path) -> RunConfig:
    hyperparameters = {
        "n_steps": STEPS,
        "prompts_per_step": PROMPTS,
        "group_size": GROUP_SIZE,
        "max_completion_tokens": MAX_TOKENS,
        "learning_rate": case.learning_rate,
        "adam_epsilon": ADAM_EPSILON,
        "lora": "full" if case.full else {"rank": 4, "alpha": 8},
        "beta": case.beta,
        "num_iterations": case.iterations,
        "kl_ratio_weight": True,
        "train_groups_without_signal": True,
        **case.ours,
    }
    method = {"grader": {"type": "format", "pattern": "."}, "hyperparameters": hyperparameters}
    return RunConfig.model_validate(
        {
            "job_id": "equivalence",
            "seed": 7,
            "model": {"name": "tiny", "path": str(model)},
            "training_file": "none",
            "method": {"type": "reinforcement", "reinforcement": method},
        }
    )


def theirs(case: Case, model: Path, folder: Path, start: Mapping[str, torch.Tensor]) -> Seen:
    """Results of the real trainer from `start`, with its own loss, advantages, optimiser and loop."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    seen, steps = Seen(), iter(given_steps(case))

    class Recording(GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            made = super()._generate_and_score_completions(inputs)
            seen.advantages.append(made["advantages"].tolist())
            return made

        def training_step(self, *arguments: Any, **named: Any) -> Any:
            loss = super().training_step(*arguments, **named)
            seen.losses.append(float(loss))
            return loss

        def log(self, logs: dict[str, float], *arguments: Any) -> None:
            if "grad_norm" in logs:
                seen.gradient_norms.append(float(logs["grad_norm"]))

    def rollouts(prompts: Any, trainer: Any) -> dict[str, Any]:
        flat = [(prompt, given) for prompt, group in next(steps) for given in group]
        made = {
            "prompt_ids": [list(prompt) for prompt, _ in flat],
            "completion_ids": [list(given.token_ids) for _, given in flat],
            "logprobs": [[0.0] * len(given.token_ids) for _, given in flat],
            "earned": [given.reward for _, given in flat],
        }
        if case.given == "tools":
            made["env_mask"] = [list(given.sampled) or [True] * len(given.token_ids) for _, given in flat]
        return made

    def reward(completions: Any, earned: Sequence[float | None], **_: Any) -> list[float | None]:
        return list(earned)

    trainer = Recording(
        model=str(model),
        reward_funcs=reward,
        args=GRPOConfig(**_their_settings(case, folder)),
        train_dataset=Dataset.from_list([{"prompt": str(row)} for row in range(PROMPTS * STEPS)]),
        processing_class=AutoTokenizer.from_pretrained(model),
        rollout_func=rollouts,
        peft_config=None if case.full else LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"),
    )
    bare = trainer.model if case.full else trainer.model.get_base_model()
    trained = {name: p for name, p in bare.named_parameters() if p.requires_grad}
    assert trained.keys() == start.keys()
    for name, parameter in trained.items():
        parameter.data.copy_(start[name])
    trainer.train()
    seen.end = _copied(trained)
    return seen


def _their_settings(case: Case, folder: Path) -> dict[str, Any]:
    return {
        "output_dir": str(folder),
        "per_device_train_batch_size": PROMPTS * GROUP_SIZE,
        "num_generations": GROUP_SIZE,
        "max_completion_length": MAX_TOKENS,
        "max_steps": STEPS * case.iterations,
        "num_iterations": case.iterations,
        "learning_rate": case.learning_rate,
        "adam_epsilon": ADAM_EPSILON,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 1.0,
        "beta": case.beta,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "model_init_kwargs": {"dtype": "float32"},
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        **case.theirs,
    }


def _copied(parameters: Mapping[str, torch.nn.Parameter]) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}


def compared(case: Case, model: Path, folder: Path) -> dict[str, float]:
    """Largest error of each kind over all steps, and the largest parameter change."""
    left = ours(case, model)
    right = theirs(case, model, folder, left.start)
    assert len(left.losses) == len(right.losses) == len(right.gradient_norms) == STEPS * case.iterations
    return {
        "advantages": _largest(list(chain(*left.advantages)), list(chain(*right.advantages))),
        "loss": _largest(left.losses, right.losses),
        "gradient norm": _largest(left.gradient_norms, right.gradient_norms),
        "parameters": _farthest(left.end, right.end),
        "moved": _farthest(left.start, left.end),
    }


def _largest(left: Sequence[float], right: Sequence[float]) -> float:
    return float(torch.tensor([a - b for a, b in zip(left, right, strict=True)]).abs().max())


def _farthest(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> float:
    return max(float((left[name] - right[name]).abs().max()) for name in left)


def within(errors: Mapping[str, float]) -> bool:
    return all(errors[name] <= limit for name, limit in TOLERANCES.items())


def table(rows: Sequence[tuple[Case, Mapping[str, float]]]) -> Iterator[str]:
    names = ("torch", "transformers", "peft", "trl")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    yield "# The same steps through TRL and through this engine"
    yield ""
    yield (
        "Written by `make equivalence` (`python -m bench.trl.equivalence`): "
        f"Python {platform.python_version()}, {versions}."
    )
    yield ""
    yield (
        f"A two-layer random Qwen3-shaped model in float32, {STEPS} steps of {PROMPTS} × {GROUP_SIZE} given "
        "completions with given rewards, one group per step without signal. TRL's real `GRPOTrainer` "
        "trains from the same weights with its own advantages, loss, optimiser and loop. AdamW with learning "
        f"rate 1e-4 (all weights: 2e-5) and ε {ADAM_EPSILON:.0e}, gradient clip 1.0. A figure is the largest "
        "absolute difference over all steps; *moved* is the largest change of a parameter."
    )
    yield ""
    yield "| loss | β | weights | advantages | loss | gradient norm | parameters | moved |"
    yield "|---|---|---|---|---|---|---|---|"
    for case, errors in rows:
        figures = " | ".join(f"{errors[name]:.1e}" for name in (*TOLERANCES, "moved"))
        yield f"| {case.name} | {case.beta:g} | {'all' if case.full else 'LoRA'} | {figures} |"
    limits = " | ".join(f"{limit:.0e}" for limit in TOLERANCES.values())
    yield f"| *tolerance* | | | {limits} | |"
    yield ""
    yield (
        "TRL trains groups without signal for their KL term and multiplies the KL by the ratio; the engine "
        "is configured to do the same (`train_groups_without_signal`, `kl_ratio_weight`). `gspo` is TRL's "
        '`importance_sampling_level="sequence"`; `dr_grpo` does not divide by the standard deviation on '
        "either side. A second iteration trains on the completions of the first, so that its ratios are not "
        "1. With Adam's default ε of 1e-8, advantages, loss and gradient norm agree as well, but a weight "
        "whose gradient is only rounding error moves a whole step in a random direction: one weight in ten "
        "thousand then differs by up to 2e-6."
    )


def main(arguments: list[str]) -> int:
    target = Path(arguments[0]) if arguments else Path(__file__).parents[1] / "equivalence.md"
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder) / "model", hidden=64, layers=2, seed=3)
        for case in CASES:
            errors = compared(case, model, Path(folder))
            rows.append((case, errors))
            figures = " ".join(f"{name} {value:.1e}" for name, value in errors.items())
            print(f"{case.name}, beta {case.beta:g}: {figures}", flush=True)
    target.write_text("\n".join(table(rows)) + "\n", encoding="utf-8")
    return 0 if all(within(errors) for _, errors in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
