"""From a configuration to a training-free run; loads weights only if the job uses its own model."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from grpo_engine.config.job import RunConfig
from grpo_engine.config.training_free import ConfiguredModel, TrainingFreeMethod
from grpo_engine.contract.errors import DatasetError
from grpo_engine.graders.pool.pool import Grading
from grpo_engine.models.policy import Policy
from grpo_engine.rollout.dataset import held_out_numbers, read_rows
from grpo_engine.training.loop import Schedule, TrainingLoop
from grpo_engine.training_free.endpoint_client import EndpointBudget, EndpointModelClient
from grpo_engine.training_free.local_client import LocalModelClient
from grpo_engine.training_free.model_client import ModelClient
from grpo_engine.training_free.trainer import ExperienceTrainer, Resources


def build_training_free(
    config: RunConfig, method: TrainingFreeMethod, run_dir: Path, load: Callable[[], Policy]
) -> TrainingLoop[ExperienceTrainer]:
    """`load` loads the job's own model. Raises an EngineError that names the problem."""
    settings = method.hyperparameters
    rows = dict(enumerate(read_rows(config.training_file)))
    validation = {number: rows.pop(number) for number in sorted(held_out_numbers(config))}
    if config.validation_file:
        validation = dict(enumerate(read_rows(config.validation_file)))
    budget = EndpointBudget(settings)
    policy = load() if settings.needs_model else None
    local = None if policy is None else LocalModelClient(config, policy)

    def client(model: ConfiguredModel) -> ModelClient:
        if model == "model":
            assert local is not None
            return local
        return EndpointModelClient(model, settings, budget)

    attempting, reflecting = client(settings.rollouts), client(settings.reflection)
    for number, row in [*rows.items(), *validation.items()]:
        if not attempting.fits(row, settings.max_completion_tokens):
            raise DatasetError(
                f"row {number + 1}: the prompt and max_completion_tokens {settings.max_completion_tokens} "
                "exceed the model's context",
                hint="Shorten the prompt or lower max_completion_tokens.",
            )
    grading = partial(
        Grading,
        processes=config.runtime.grader_processes,
        deadline_seconds=settings.grader_timeout_seconds,
    )
    graders = grading(method.grader), grading(method.eval_grader or method.grader)
    resources = Resources(attempting, reflecting, *graders, budget, policy)
    trainer = ExperienceTrainer(config, settings, resources, rows, validation)
    schedule = Schedule.of(settings, trainer.total_steps, keeps_best=False)
    return TrainingLoop(config, run_dir, trainer, schedule, artifact=trainer)
