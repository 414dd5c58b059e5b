"""Options of a training-free job: the answering and reflecting models, the lessons, and the budget."""

import math
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from grpo_engine.config.environments import refuse_environment_reward
from grpo_engine.config.hyperparameters import LEAST_TEMPERATURE, PositiveInt, RunLength
from grpo_engine.config.recipes import ALIASES, rename_aliases
from grpo_engine.contract.records import Input
from grpo_engine.graders import Grader

PLACEHOLDER = "{experiences}"
DEFAULT_TEMPLATE = (
    "Lessons from earlier attempts at tasks like this one. Use those that fit, pass over the others.\n"
    + PLACEHOLDER
)


class EndpointModel(Input):
    """A model on one of the operator's OpenAI-compatible servers."""

    endpoint: str = Field(min_length=1, max_length=128)
    """Name of one of the operator's servers; jobs contain no addresses or keys."""
    model: str = Field(min_length=1, max_length=256)
    """The model's name on that server; the operator may restrict the choice."""
    length_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """The server's name for the length limit; OpenAI's reasoning models need max_completion_tokens."""

    @property
    def label(self) -> str:
        return f"{self.endpoint}/{self.model}"


ConfiguredModel = Literal["model"] | EndpointModel
""" "model": the job's own, on the worker."""


class TrainingFreeHyperparameters(RunLength):
    """Training-Free GRPO (arXiv 2510.08191); the defaults of group size and epochs are the paper's."""

    prompts_per_step: int = Field(32, ge=1, le=4096)
    """Rows per batch; the lessons change once per batch, so fewer rows mean more, smaller changes."""
    group_size: int = Field(5, ge=2, le=256)
    """Attempts per row (G); winners are compared with losers, so at least 2."""
    temperature: float = Field(0.7, ge=LEAST_TEMPERATURE, le=2)
    """Sampling temperature of the attempts; at 0 all attempts of a group would be equal."""
    max_completion_tokens: int = Field(1024, ge=1, le=131_072)
    """Maximum tokens of an attempt."""

    rollouts: ConfiguredModel = "model"
    """The model that attempts the tasks and whose prompt is improved."""
    reflection: ConfiguredModel = "model"
    """The model that compares attempts and writes the lessons; a stronger one writes better lessons."""
    reflection_temperature: float = Field(0.0, ge=0, le=2)
    """Sampling temperature of the reflecting model."""
    reflection_max_tokens: int = Field(1024, ge=16, le=131_072)
    """Maximum tokens of one response of the reflecting model, reasoning included."""
    max_experiences: int = Field(32, ge=1, le=256)
    """Maximum number of lessons; a new one then replaces the lesson whose last use is longest ago."""
    max_experience_chars: int = Field(400, ge=20, le=4000)
    """Maximum characters of a lesson; longer ones are cut at a word."""
    max_attempt_chars: int = Field(6000, ge=100, le=1_000_000)
    """Maximum characters of an attempt that the reflecting model sees; the middle is left out."""
    template: str = Field(DEFAULT_TEMPLATE, max_length=20_000)
    """Text before the system message (or the first user turn); `{experiences}` is the list of lessons."""

    concurrent_calls: int = Field(8, ge=1, le=256)
    """Maximum concurrent calls to an endpoint."""
    request_timeout_seconds: float = Field(120.0, gt=0, le=3600)
    """Time limit of one call, retries included."""
    max_calls: PositiveInt | None = None
    """Maximum number of calls to endpoints in the whole job; beyond it the job fails with `spend_limit`."""
    max_cost_usd: float | None = Field(None, gt=0)
    """Maximum cost of the whole job in US dollars; needs the operator's prices."""

    checkpoint_interval: PositiveInt = 1
    """Batches between checkpoints; after a crash, later batches are repeated and paid for again."""
    eval_temperature: float = Field(0.0, ge=0, le=2)
    """Sampling temperature of evaluations; 0: greedy."""
    max_grader_error_rate: float = Field(0.5, gt=0, le=1)
    """Maximum share of a batch's attempts that may be unscorable before the job fails."""
    grader_timeout_seconds: float = Field(30.0, gt=0, le=3600)
    """Time limit for grading one attempt."""

    @property
    def needs_model(self) -> bool:
        """Whether the job's own model is loaded."""
        return "model" in (self.rollouts, self.reflection)

    def rows_per_step(self, num_rows: int) -> int:
        """Dataset rows of a batch: at most the whole file."""
        return min(self.prompts_per_step, num_rows)

    def total_steps(self, num_rows: int) -> int:
        """Batches for a dataset of `num_rows` rows; at least one per epoch."""
        if self.n_steps is not None:
            return self.n_steps
        epochs = 3 if self.n_epochs == "auto" else self.n_epochs
        return max(1, math.ceil(epochs * num_rows / max(1, self.rows_per_step(num_rows))))

    def eval_every(self, total_steps: int) -> int:
        """Steps between evaluations, besides those before the first and after the last step."""
        return total_steps if self.eval_interval == "auto" else self.eval_interval

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if data.get("batch_size") == "auto":
            data = {name: value for name, value in data.items() if name != "batch_size"}
        return rename_aliases(data, {**ALIASES, "batch_size": "prompts_per_step"})

    @model_validator(mode="after")
    def _has_placeholder(self) -> Self:
        if PLACEHOLDER not in self.template:
            raise ValueError(f"template needs {PLACEHOLDER}")
        return self


class TrainingFreeMethod(Input):
    grader: Grader
    """The rule that ranks attempts."""
    eval_grader: Grader | None = None
    """Grader of the validation rows; null: the grader that ranks attempts."""
    hyperparameters: TrainingFreeHyperparameters = Field(default_factory=TrainingFreeHyperparameters)
    """Options of the training."""

    @model_validator(mode="after")
    def _has_no_environments(self) -> Self:
        refuse_environment_reward(self.grader, "grader")
        refuse_environment_reward(self.eval_grader, "eval_grader")
        return self


class TrainingFree(Input):
    type: Literal["training_free"]
    training_free: TrainingFreeMethod
    """The grader and the options of training-free GRPO."""
