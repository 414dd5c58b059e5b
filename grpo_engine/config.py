"""The one configuration tree: what a job may say, with ranges and consequences.

The service validates a POSTed job with these classes and the engine runs with them, so an accepted job
cannot fail on a typo. Unknown keys are refused; recipes and other systems' names are expanded into a
visible full configuration, and validating an expanded configuration again changes nothing.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from grpo_engine.expand import (
    ALIASES,
    expand_learning_rate,
    expand_multiplied,
    expand_recipe,
    rename_aliases,
)
from grpo_engine.graders import Grader
from grpo_engine.records import Record

Auto = Literal["auto"]
PositiveInt = Annotated[int, Field(ge=1)]
StepCount = Annotated[int, Field(ge=1, le=1_000_000)]


class Lora(Record):
    """Low-rank adapter; the base model stays as it is and serves as the reference."""

    rank: int = Field(16, ge=1, le=512)
    alpha: float = Field(32, gt=0, le=4096)
    """The adapter's output is scaled by alpha / rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"


class Hyperparameters(Record):
    """What every training method has."""

    n_epochs: Auto | Annotated[int, Field(ge=1, le=50)] = "auto"
    n_steps: StepCount | None = None
    """Optimiser steps; takes the place of n_epochs."""
    batch_size: Auto | Annotated[int, Field(ge=1, le=4096)] = "auto"
    learning_rate: float = Field(gt=0, le=1)
    learning_rate_multiplier: Auto | Annotated[float, Field(gt=0, le=1000)] = "auto"
    """Times our default; an alternative to learning_rate."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = Field(0, ge=0, le=100_000)
    weight_decay: float = Field(0.0, ge=0, le=1)
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.999, ge=0, lt=1)
    adam_epsilon: float = Field(1e-8, gt=0, le=1e-2)
    max_grad_norm: float = Field(1.0, gt=0)
    lora: Lora | Literal["full"] | None = None
    """Adapter shape, or "full" for all weights. None: the parent job's adapter shape, else rank 16."""
    checkpoint_interval: PositiveInt = 20
    """Steps between checkpoints: at most so many are repeated after a crash."""
    max_checkpoints: int = Field(3, ge=1, le=100)
    eval_interval: Auto | PositiveInt = "auto"
    """Steps between evaluations of the validation file; auto: ten over the job."""
    eval_samples: Auto | PositiveInt = "auto"
    """Validation rows per evaluation; auto: all, at most 256."""

    @property
    def rows_per_step(self) -> int:
        """Dataset rows that one optimiser step consumes."""
        raise TypeError(f"{type(self).__name__} does not say how many rows a step takes")

    def total_steps(self, num_rows: int) -> int:
        """Optimiser steps for a dataset of `num_rows` rows; at least 1."""
        if self.n_steps is not None:
            return self.n_steps
        epochs = 1 if self.n_epochs == "auto" else self.n_epochs
        return max(1, math.ceil(epochs * num_rows / self.rows_per_step))

    def eval_every(self, total_steps: int) -> int:
        """Steps between evaluations."""
        return max(1, total_steps // 10) if self.eval_interval == "auto" else self.eval_interval

    def eval_rows(self, num_rows: int) -> int:
        """Validation rows used in an evaluation."""
        return min(num_rows, 256 if self.eval_samples == "auto" else self.eval_samples)

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.n_steps is not None and self.n_epochs != "auto":
            raise ValueError("give n_steps or n_epochs, not both")
        return self


class SupervisedHyperparameters(Hyperparameters):
    """Cross-entropy on the last assistant turn."""

    max_tokens: int = Field(2048, ge=8, le=1_000_000)
    """Rows longer than this are refused at submit; nothing is cut silently."""

    @property
    def rows_per_step(self) -> int:
        return 8 if self.batch_size == "auto" else self.batch_size

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = rename_aliases(data, ALIASES)
        return expand_learning_rate(data, default=1e-5 if data.get("lora") == "full" else 1e-4)


class ReinforcementHyperparameters(Hyperparameters):
    """GRPO (DeepSeekMath, arXiv 2402.03300) and its relatives."""

    recipe: Literal["grpo", "dr_grpo", "dapo"] = "grpo"
    """Fills in what the job does not say; the answer shows the whole expanded configuration."""
    group_size: int = Field(8, ge=2, le=1024)
    """Completions per prompt (G). The group's mean is the baseline, so one alone teaches nothing."""
    compute_multiplier: Auto | Annotated[float, Field(gt=1e-5, le=10)] = "auto"
    """Scales the default group_size; an alternative to group_size."""
    prompts_per_step: int = Field(8, ge=1, le=4096)
    beta: float = Field(0.04, ge=0, le=100)
    """Weight of the KL term to the reference; 0 means no reference pass at all."""
    loss_type: Literal["grpo", "dapo", "dr_grpo"] = "grpo"
    advantage: Literal["group_std", "mean_only"] = "group_std"
    advantage_ddof: Literal[0, 1] = 1
    """Degrees of freedom of the group's standard deviation: 1 as TRL, 0 the textbook z-score."""
    epsilon_low: float = Field(0.2, gt=0, lt=1)
    epsilon_high: float = Field(0.2, gt=0, le=10)
    kl_estimator: Literal["k3"] = "k3"
    kl_placement: Literal["loss"] = "loss"
    kl_ratio_weight: bool = False
    """Multiply the KL term by the ratio ρ: the unbiased gradient where the sampler lags behind."""
    temperature: float = Field(1.0, gt=0, le=10)
    max_completion_tokens: int = Field(256, ge=1, le=131_072)
    max_skipped_steps: PositiveInt = 20
    """Steps without signal in a row after which the job fails with `no_signal`."""
    max_grader_error_rate: float = Field(0.5, gt=0, le=1)
    """Share of a step's completions that may be unscorable before the job fails."""

    @property
    def rows_per_step(self) -> int:
        return self.prompts_per_step

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = expand_recipe(rename_aliases(data, ALIASES))
        data = expand_multiplied(data, "group_size", "compute_multiplier", lambda m: max(2, round(8 * m)))
        data = expand_multiplied(data, "prompts_per_step", "batch_size", lambda size: size)
        return expand_learning_rate(data, default=1e-6 if data.get("lora") == "full" else 1e-5)


class ReinforcementMethod(Record):
    grader: Grader
    response_format: dict[str, Any] | None = None
    """JSON schema the completions should follow; a completion that is not JSON cannot resolve
    `sample.output_json`, and its grader says so."""
    hyperparameters: ReinforcementHyperparameters = Field(default_factory=ReinforcementHyperparameters)  # type: ignore[arg-type]


class SupervisedMethod(Record):
    hyperparameters: SupervisedHyperparameters = Field(default_factory=SupervisedHyperparameters)  # type: ignore[arg-type]


class Reinforcement(Record):
    type: Literal["reinforcement"]
    reinforcement: ReinforcementMethod


class Supervised(Record):
    type: Literal["supervised"]
    supervised: SupervisedMethod = Field(default_factory=SupervisedMethod)


Method = Annotated[Reinforcement | Supervised, Field(discriminator="type")]


def hyperparameters_of(method: Reinforcement | Supervised) -> Hyperparameters:
    """The method's hyperparameters, whatever its type."""
    if isinstance(method, Reinforcement):
        return method.reinforcement.hyperparameters
    return method.supervised.hyperparameters


class ModelSource(Record):
    """Where the weights come from: always the catalogue's word, never a user's path."""

    name: str
    """Of the base: what a trained adapter says it belongs to."""
    path: str
    """A folder with safetensors, or a hub id."""
    revision: str | None = None
    adapter: str | None = None
    """Folder of a PEFT adapter (an earlier job's) to go on from; it is also the reference."""


class Runtime(Record):
    """How the engine uses its machine; changes speed and memory, never the mathematics."""

    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    sampler: Literal["auto", "torch"] = "auto"
    num_threads: int | None = Field(None, ge=1)
    token_budget: int = Field(16_384, ge=16)
    """Tokens of one training micro-batch."""
    sample_budget: int = Field(512, ge=1)
    """Completions that are sampled side by side."""


class RunConfig(Record):
    """`config.json`: all that an engine run depends on."""

    format: Literal[1] = 1
    job_id: str
    seed: int = Field(0, ge=0, lt=2**63)
    model: ModelSource
    training_file: str
    """JSONL on the engine's disk."""
    validation_file: str | None = None
    method: Method
    runtime: Runtime = Field(default_factory=Runtime)
    created_at: float = 0.0
    """Unix seconds of the job's creation: the date that chat templates print, also after midnight."""
    first_sequence: int = Field(1, ge=1)
    """Number of the first event this run writes, where the run directory holds none yet."""
    published_step: int = Field(0, ge=0)
    """Steps up to this one are already published; a resumed run repeats them silently."""
