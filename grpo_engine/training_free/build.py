"""From a configuration to a training-free run; loads weights only if the job uses its own model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from grpo_engine.config.job import RunConfig
from grpo_engine.config.training_free import Speaker as ConfiguredModel
from grpo_engine.config.training_free import TrainingFreeHyperparameters, TrainingFreeMethod
from grpo_engine.contract.errors import DatasetError
from grpo_engine.graders import Grader
from grpo_engine.graders.pool.pool import Grading, open_grading
from grpo_engine.models.policy import Policy
from grpo_engine.rollout.dataset import RowReader, read_rows
from grpo_engine.rollout.sampler.torch_sampler import TorchSampler
from grpo_engine.training.loop import Schedule, TrainingLoop
from grpo_engine.training_free.endpoint_client import EndpointBudget, EndpointModelClient
from grpo_engine.training_free.local_client import LocalModelClient
from grpo_engine.training_free.model_client import ModelClient
from grpo_engine.training_free.prompts import Row
from grpo_engine.training_free.trainer import ExperienceTrainer, Resources


def build_training_free(
    config: RunConfig, method: TrainingFreeMethod, run_dir: Path, load: Callable[[], Policy]
) -> TrainingLoop[ExperienceTrainer]:
    """`load` loads the job's own model. Raises an EngineError that names the problem."""
    settings = method.hyperparameters
    rows = read_rows(config.training_file)
    validation = read_rows(config.validation_file) if config.validation_file else []
    budget = EndpointBudget(settings)
    policy = load() if settings.needs_model else None
    local = None if policy is None else _local(config, policy)

    def client(asked: ConfiguredModel) -> ModelClient:
        if asked == "model":
            assert local is not None
            return local
        return EndpointModelClient(asked, settings, budget)

    attempting, reflecting = client(settings.rollouts), client(settings.reflection)
    _refuse_long([*rows, *validation], attempting, settings)
    resources = Resources(
        attempting,
        reflecting,
        _grading(config, method.grader, settings),
        _grading(config, method.eval_grader or method.grader, settings),
        budget,
        policy,
    )
    trainer = ExperienceTrainer(config, settings, resources, rows, validation)
    schedule = Schedule.of(settings, trainer.total_steps, keeps_best=False)
    return TrainingLoop(config, run_dir, trainer, schedule, artifact=trainer)


def _local(config: RunConfig, policy: Policy) -> LocalModelClient:
    return LocalModelClient(
        RowReader(policy.tokenizer, config.created_at),
        TorchSampler(policy, config.runtime.sample_budget),
        max_length=policy.max_length,
        seed=config.seed,
        has_template=bool(policy.tokenizer.chat_template),
    )


def _grading(config: RunConfig, grader: Grader, settings: TrainingFreeHyperparameters) -> Grading:
    return open_grading(
        grader,
        processes=config.runtime.grader_processes,
        deadline_seconds=settings.grader_timeout_seconds,
    )


def _refuse_long(rows: Sequence[Row], attempting: ModelClient, settings: TrainingFreeHyperparameters) -> None:
    for number, row in enumerate(rows, 1):
        if not attempting.fits(row, settings.max_completion_tokens):
            raise DatasetError(
                f"row {number}: the prompt and max_completion_tokens {settings.max_completion_tokens} "
                "exceed the model's context",
                hint="Shorten the prompt or lower max_completion_tokens.",
            )
