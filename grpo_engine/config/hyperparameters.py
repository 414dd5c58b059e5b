"""Hyperparameters that all methods share, and those of the supervised method."""

import math
from abc import abstractmethod
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from grpo_engine.config.recipes import ALIASES, expand_learning_rate, problem_at, rename_aliases
from grpo_engine.contract.records import Input, Listed, filled_in

Auto = Literal["auto"]
Quantization = Literal["nf4", "int8"]
PositiveInt = Annotated[int, Field(ge=1)]
LEAST_TEMPERATURE = 1e-6
"""Below it a completion is greedy: logits divided by such a number may exceed float32."""
StepCount = Annotated[int, Field(ge=1, le=1_000_000)]
VLLM_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks of adapters that vLLM's kernels support; it pads other adapters to the next larger one."""


class Lora(Input):
    """Low-rank adapter; the base model stays unchanged and serves as the reference."""

    rank: int = Field(16, ge=1, le=512)
    """Rank of the adapter's matrices; higher ranks learn more, with more memory and larger files."""
    alpha: float = Field(32, gt=0, le=4096)
    """Scale: the adapter's output is multiplied by alpha / rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Share of the adapter's inputs that are dropped in training; 0: none, as required for experts."""
    target_modules: Literal["all-linear"] | Listed[str] = "all-linear"
    """Names of the linear layers to adapt; "all-linear": all of them, including experts and routers, except
    the output layer."""


class RunLength(Input):
    """Steps, checkpoints and evaluations of a run."""

    n_epochs: Auto | Annotated[int, Field(ge=1, le=50)] = "auto"
    """Passes over the training file, 1 to 50; auto: 1, or 3 for training_free."""
    n_steps: StepCount | None = None
    """Number of optimiser steps, or of batches for training_free; an alternative to n_epochs."""
    max_checkpoints: int = Field(3, ge=1, le=100)
    """Number of newest checkpoints to keep, besides the best evaluated one."""
    eval_interval: Auto | PositiveInt = "auto"
    """Steps between evaluations; auto: ten evaluations per job, or for training_free one before the first
    step and one after the last."""
    eval_samples: Auto | PositiveInt = "auto"
    """Validation rows per evaluation; auto: all, at most 256."""

    def eval_rows(self, num_rows: int) -> int:
        """Validation rows used in an evaluation."""
        return min(num_rows, 256 if self.eval_samples == "auto" else self.eval_samples)

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.n_steps is not None and self.n_epochs != "auto":
            raise problem_at("give n_steps or n_epochs, not both", "n_epochs")
        return self


class Hyperparameters(RunLength):
    """Hyperparameters that every method with weights has."""

    model_config = ConfigDict(json_schema_extra=filled_in("learning_rate"))

    batch_size: Auto | Annotated[int, Field(ge=1, le=4096)] = "auto"
    """Rows per step; auto: 8. For reinforcement, this is another name for prompts_per_step."""
    learning_rate: float = Field(gt=0, le=1)
    """Peak learning rate of AdamW, above 0 and at most 1; the default depends on the method and on lora."""
    learning_rate_multiplier: Auto | Annotated[float, Field(gt=0, le=1000)] = "auto"
    """Multiplies the default learning rate; an alternative to learning_rate."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after warm-up: constant, or falling to 0 linearly or along a cosine."""
    warmup_steps: int = Field(0, ge=0, le=100_000)
    """Steps in which the learning rate rises linearly to its peak."""
    weight_decay: float = Field(0.0, ge=0, le=1)
    """AdamW's weight decay; 0 turns it off."""
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    """AdamW's beta 1: decay rate of the running mean of the gradients."""
    adam_beta2: float = Field(0.999, ge=0, lt=1)
    """AdamW's beta 2: decay rate of the running mean of the squared gradients."""
    adam_epsilon: float = Field(1e-8, gt=0, le=1e-2)
    """Added to AdamW's denominator for numerical stability."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Maximum norm of the gradient; a larger gradient is scaled down to this norm."""
    lora: Lora | Literal["full"] | None = None
    """Adapter shape, or "full" to train all weights; null: the parent job's shape, or rank 16."""
    quantization: Quantization | None = None
    """To save memory, store the frozen base's linear layers in 4 bits (nf4) or 8 bits (int8); null: off."""
    checkpoint_interval: PositiveInt = 20
    """Steps between checkpoints; after a crash, at most this many steps are repeated."""

    @property
    @abstractmethod
    def rows_per_step(self) -> int:
        """Dataset rows that one optimiser step consumes."""

    def total_steps(self, num_rows: int) -> int:
        """Optimiser steps for a dataset of `num_rows` rows; at least 1."""
        if self.n_steps is not None:
            return self.n_steps
        epochs = 1 if self.n_epochs == "auto" else self.n_epochs
        return max(1, math.ceil(epochs * num_rows / self.rows_per_step))

    def eval_every(self, total_steps: int) -> int:
        """Steps between evaluations."""
        return max(1, total_steps // 10) if self.eval_interval == "auto" else self.eval_interval

    @model_validator(mode="after")
    def _trains_no_quantized_weights(self) -> Self:
        if self.quantization is not None and self.lora == "full":
            message = 'must be null with lora "full": quantised weights cannot be trained, only an adapter'
            raise problem_at(message, "quantization")
        return self


class SupervisedHyperparameters(Hyperparameters):
    """Cross-entropy on the last assistant turn."""

    max_tokens: int = Field(2048, ge=8, le=1_000_000)
    """Maximum tokens of a row; longer rows are refused when the job is created, never cut."""

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
