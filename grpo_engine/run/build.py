"""From a configuration to a training loop: device, weights, data, sampler, graders, method."""

from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from grpo_engine.config.job import (
    Reinforcement,
    ReinforcementMethod,
    RunConfig,
    Runtime,
    SupervisedHyperparameters,
    SupervisedMethod,
    TrainingFree,
    hyperparameters_of,
)
from grpo_engine.config.tools import function_schemas
from grpo_engine.contract.errors import ConfigError, DatasetError, DeviceMemoryError
from grpo_engine.contract.events import VALIDATION
from grpo_engine.graders import Grader
from grpo_engine.graders.pool.pool import Grading
from grpo_engine.models.device_memory import own_bytes, refuse_above_budget
from grpo_engine.models.loading import load_policy
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Prompt
from grpo_engine.process.setup import keep_freed_memory
from grpo_engine.rollout.agents.agents import Agents
from grpo_engine.rollout.dataset import RowReader, held_out_numbers, parted, read_rows
from grpo_engine.rollout.environments.sampler import (
    Environments,
    EnvironmentSampler,
    refuse_unknown_environments,
)
from grpo_engine.rollout.environments.servers import OpenEnvServers
from grpo_engine.rollout.evaluation import HeldOutSet
from grpo_engine.rollout.sampler.base import Sampler
from grpo_engine.rollout.sampler.choice import open_sampler
from grpo_engine.rollout.sampler.vllm.shared_engine import in_lockstep
from grpo_engine.rollout.tools.listing import listed_tools
from grpo_engine.rollout.tools.sampler import ToolSampler
from grpo_engine.run.devices import choose_device
from grpo_engine.run.export import ExportRun
from grpo_engine.run.rank_setup import open_policy, with_gathered_weights
from grpo_engine.training.loop import Schedule, TrainingLoop
from grpo_engine.training.probe import Probe
from grpo_engine.training.supervised import SupervisedTrainer
from grpo_engine.training.trainer import Trainer
from grpo_engine.training_free.build import build_training_free


def build_run(config: RunConfig, run_dir: Path) -> TrainingLoop[Any] | ExportRun:
    """The export if the configuration is one, otherwise a loop of steps. Raises an EngineError."""
    if config.export is not None:
        return ExportRun(config, run_dir)
    try:
        return build_loop(config, run_dir)
    except torch.OutOfMemoryError as error:
        message = f"{config.model.name} does not fit the device's memory while it is loaded"
        raise DeviceMemoryError(message, evidence=(str(error)[:500],)) from error


def build_loop(config: RunConfig, run_dir: Path) -> TrainingLoop[Any]:
    """Load everything that the run needs. Raises an EngineError that names the problem."""
    device, dtype = prepare_device(config.runtime)
    if isinstance(config.method, TrainingFree):
        unchanged = SupervisedHyperparameters.model_validate({})
        load = partial(load_policy, config.model, unchanged, device, dtype, config.seed)
        return build_training_free(config, config.method.training_free, run_dir, load)
    policy = open_policy(config, hyperparameters_of(config.method), device, dtype)
    held = own_bytes(policy.model, policy.reference_model)
    refuse_above_budget(config.model.name, "training", held, config.runtime.weight_budget_bytes)
    if isinstance(config.method, Reinforcement):
        return _reinforcement(config, config.method.reinforcement, run_dir, policy)
    return _supervised(config, config.method.supervised, run_dir, policy)


def _supervised(
    config: RunConfig, method: SupervisedMethod, run_dir: Path, policy: Policy
) -> TrainingLoop[SupervisedTrainer]:
    settings = method.hyperparameters
    limit = min(settings.max_tokens, policy.max_length or settings.max_tokens)
    reader = RowReader(policy.tokenizer, config.created_at)
    rows = reader.demonstrations(read_rows(config.training_file), limit)
    demonstrations, validation = parted(rows, held_out_numbers(config))
    if config.validation_file:
        validation = reader.demonstrations(read_rows(config.validation_file), limit)
    refuse_unknown_tokens([*demonstrations, *validation], policy)
    policy.fix_positions(max(len(each.token_ids) + len(each.target_ids) for each in [*rows, *validation]))
    trainer = SupervisedTrainer(config, method, policy, demonstrations, validation)
    schedule = Schedule.of(settings, trainer.total_steps)
    return TrainingLoop(config, run_dir, trainer, schedule, artifact=trainer.updater)


def _reinforcement(
    config: RunConfig, method: ReinforcementMethod, run_dir: Path, policy: Policy
) -> TrainingLoop[Trainer] | TrainingLoop[Probe]:
    settings = method.hyperparameters
    method = method.model_copy(update={"tools": listed_tools(method.tools, policy.tokenizer)})
    reader = RowReader(policy.tokenizer, config.created_at, function_schemas(method.tools))

    @cache
    def prompts(path: str) -> list[Prompt]:
        made = reader.prompts(read_rows(path))
        _refuse_long(made, settings.max_completion_tokens, policy.max_length)
        refuse_unknown_tokens(made, policy)
        refuse_unknown_environments(made, method.environments)
        return made

    grading_of = partial(
        Grading,
        processes=config.runtime.grader_processes,
        deadline_seconds=settings.grader_timeout_seconds,
    )

    training, validation = parted(prompts(config.training_file), held_out_numbers(config))
    files = [config.training_file, config.validation_file, *config.retention_files.values()]
    longest = max(len(prompt.token_ids) for path in files if path for prompt in prompts(path))
    context = longest + settings.max_completion_tokens
    policy.fix_positions(context)
    sampler = _open_sampler(config, method, policy, reader, context, run_dir)
    grading = grading_of(method.grader)
    if config.probe is not None:
        probe = Probe(config, config.probe, method, policy, sampler, grading, training)
        return TrainingLoop(config, run_dir, probe, Schedule.of(settings, probe.total_steps))
    held_out = [
        HeldOutSet(rows[: settings.eval_rows(len(rows))], grading_of(grader) if grader else grading, name)
        for name, path, grader in _held_out_files(config, method)
        for rows in [prompts(path) if path else validation]
    ]
    trainer = Trainer(config, method, policy, sampler, grading, training, held_out)
    schedule = Schedule.of(
        settings, trainer.total_steps, guards=settings.guards, early_stopping=settings.early_stopping
    )
    return TrainingLoop(
        config, run_dir, trainer, schedule, artifact=trainer.updater, raise_beta=trainer.raise_beta
    )


def _open_sampler(
    config: RunConfig,
    method: ReinforcementMethod,
    policy: Policy,
    reader: RowReader,
    context: int,
    run_dir: Path,
) -> Sampler:
    """The sampler of tokens; for a job with environments or tools, inside the sampler of their dialogues."""
    settings = method.hyperparameters
    sampler = open_sampler(config.runtime, policy, settings, context, run_dir)
    if method.environments:
        types = _environments_by_type(config, method, policy, reader, context)
        sampler = in_lockstep(EnvironmentSampler(sampler, *types))
    elif method.tools:
        sampler = in_lockstep(ToolSampler(sampler, policy, method.tools, max_turns=settings.max_turns))
    return with_gathered_weights(sampler, policy)


def _environments_by_type(
    config: RunConfig, method: ReinforcementMethod, policy: Policy, reader: RowReader, context: int
) -> Iterator[Environments]:
    """The job's environments. Raises ConfigError."""
    agents = {name: each for name, each in method.environments.items() if each.type == "agent"}
    if agents:
        place = config.runtime.agent_host, config.runtime.agent_ports
        yield Agents(policy, agents, config.created_at, context, *place)
    servers = {name: each for name, each in method.environments.items() if each.type == "openenv"}
    if servers:
        yield OpenEnvServers(policy, servers, reader, method.tools)


def _held_out_files(
    config: RunConfig, method: ReinforcementMethod
) -> Iterator[tuple[str, str | None, Grader | None]]:
    """Name, file and own grader of the validation rows and then of the retention sets.

    The file is None for held-out rows of the training file.
    """
    if config.validation_file is not None or config.validation_split is not None:
        yield VALIDATION, config.validation_file, method.eval_grader
    elif method.hyperparameters.early_stopping is not None:
        message = "early_stopping needs validation_file or validation_split: it watches the held-out reward"
        raise ConfigError(message)
    for each in method.retention:
        if each.name not in config.retention_files:
            raise ConfigError(f"retention_files has no file for the retention set {each.name!r}")
        yield each.name, config.retention_files[each.name], each.grader


def _refuse_long(prompts: list[Prompt], max_completion_tokens: int, max_length: int | None) -> None:
    for prompt in prompts:
        if not prompt.token_ids:
            raise DatasetError(f"row {prompt.row + 1} has an empty prompt")
        if max_length is not None and len(prompt.token_ids) + max_completion_tokens > max_length:
            raise DatasetError(
                f"row {prompt.row + 1}: a prompt of {len(prompt.token_ids)} tokens and "
                f"max_completion_tokens {max_completion_tokens} exceed the model's limit of {max_length}",
                hint="Shorten the prompt or lower max_completion_tokens.",
            )


def refuse_unknown_tokens(prompts: list[Prompt], policy: Policy) -> None:
    """Raise DatasetError for tokens that were added to the tokenizer but have no embeddings in the model."""
    known = policy.num_embeddings
    for prompt in prompts:
        last = max((*prompt.token_ids, *prompt.target_ids), default=0)
        if last >= known:
            token = policy.tokenizer.convert_ids_to_tokens(last)
            raise DatasetError(
                f"row {prompt.row + 1}: the token {token!r} ({last}) has no embedding: the model has {known}",
                hint="Resize the model's embeddings to its tokenizer, or remove the token from the text.",
            )


def prepare_device(runtime: Runtime) -> tuple[torch.device, torch.dtype]:
    """The device and number format to compute with; sets up threads and heap. Raises ConfigError."""
    if runtime.num_threads is not None:
        torch.set_num_threads(runtime.num_threads)
    device = choose_device(runtime)
    keep_freed_memory(device.type)
    return device, choose_dtype(runtime, device)


def choose_dtype(runtime: Runtime, device: torch.device) -> torch.dtype:
    """The configured type; "auto" is bfloat16 on a GPU that supports it, otherwise float32."""
    if runtime.dtype != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[runtime.dtype]
    if device.type == "cuda" and torch.cuda.is_bf16_supported():
        return torch.bfloat16
    return torch.float32
