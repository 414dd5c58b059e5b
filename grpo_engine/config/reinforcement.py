"""GRPO and its relatives: every option of a reinforcement job, with ranges and consequences.

Boundary: plain data of the engine's door. Recipes and other systems' names are expanded (`expand.py`) into
a visible full configuration; the rules between fields stand here, each with the reason in its message.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from grpo_engine.config.guards import Guard, default_guards
from grpo_engine.config.hyperparameters import Auto, Hyperparameters, PositiveInt
from grpo_engine.config.recipes import (
    ALIASES,
    expand_learning_rate,
    expand_loss_type,
    expand_multiplied,
    expand_recipe,
    problem_at,
    rename_aliases,
)
from grpo_engine.contract.records import Input, Listed

LossType = Literal["grpo", "dapo", "dr_grpo", "bnpo", "gspo", "cispo", "sapo", "reinforce"]
Advantage = Literal[
    "group_std", "mean_only", "batch_std", "leave_one_out", "reinforce_plus_plus", "gdpo", "process"
]
ImportanceCorrection = Literal[
    "auto", "none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"
]
MAX_STOPS = 16
Stop = Annotated[str, Field(min_length=1, max_length=256)]
Stops = Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)]


def _one_or_more(value: Any) -> Any:
    """One text stands for a list of it, as in OpenAI's API."""
    return (value,) if isinstance(value, str) else value


class SelfDistillation(Input):
    """SDPO (arXiv 2601.20802): the policy that is told what went wrong teaches the policy that is not."""

    weight: float = Field(1.0, gt=0, le=1000)
    """Times the distillation loss, a mean over the tokens of the attempts that are distilled."""
    feedback: Literal["auto", "grader", "sibling"] = "auto"
    """What the teacher is told: the grader's message, a successful sibling, or (auto) both as there are."""
    success_reward: float = 1.0
    """An attempt below it has failed; a sibling with at least it is a success."""
    alone: bool = False
    """Without the GRPO loss: only the distillation moves the weights."""
    top_k: int | None = Field(None, ge=1, le=100_000)
    """Compare only the teacher's k likeliest tokens and the rest as one; None: the whole vocabulary."""
    template: str = Field(
        "{prompt}\n\n{feedback}\n\nAnswer the original question again, correctly.", max_length=20_000
    )
    """The teacher's last user turn: `{prompt}` is the pupil's, `{feedback}` what was found."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if "{feedback}" not in self.template or "{prompt}" not in self.template:
            raise problem_at("template needs {prompt} and {feedback}", "template")
        return self


class EarlyStopping(Input):
    """End the job when the held-out reward no longer rises."""

    patience: PositiveInt = 3
    """Evaluations in a row without improvement."""
    min_improvement: float = Field(0.0, ge=0)
    """Of the mean held-out reward over the best so far."""


class ReinforcementHyperparameters(Hyperparameters):
    """GRPO (DeepSeekMath, arXiv 2402.03300) and its relatives."""

    recipe: Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo", "sapo", "rloo", "reinforce_plus_plus"] = (
        "grpo"
    )
    """Fills in what the job does not say; the answer shows the whole expanded configuration."""
    group_size: int = Field(8, ge=2, le=1024)
    """Completions per prompt (G). The group's mean is the baseline, so one alone teaches nothing."""
    reasoning_effort: Literal["default", "low", "medium", "high"] = "default"
    """OpenAI's, for its own models: accepted and without effect, as models here have no such switch."""
    compute_multiplier: Auto | Annotated[float, Field(gt=1e-5, le=10)] = "auto"
    """Scales the default group_size; an alternative to group_size."""
    prompts_per_step: int = Field(8, ge=1, le=4096)
    num_iterations: int = Field(1, ge=1, le=64)
    """Optimiser steps on each step's completions; from the second on the old log-probabilities are stored."""

    advantage: Advantage = "group_std"
    advantage_ddof: int = Field(1, ge=0, le=1)
    """Degrees of freedom of a standard deviation: 1 as TRL, 0 the textbook z-score."""
    loss_type: LossType = "grpo"
    epsilon_low: float = Field(0.2, gt=0, lt=1)
    epsilon_high: float = Field(0.2, gt=0, le=100)
    """Clip from above at 1 + epsilon_high; for `cispo` the bound itself."""
    delta: float | None = Field(None, gt=1, le=1000)
    """Two-sided clip: bounds the ratio itself from above, also where the advantage is negative."""
    sapo_temperature_positive: float = Field(1.0, gt=0, le=100)
    sapo_temperature_negative: float = Field(1.05, gt=0, le=100)
    entropy_coef: float = Field(0.0, ge=0, le=10)
    """Entropy bonus: this times the mean entropy of the trained tokens is subtracted from the loss."""
    top_entropy_quantile: float = Field(1.0, gt=0, le=1)
    """Train only this share of a step's tokens, those with the highest entropy; 1: all."""

    beta: float = Field(0.04, ge=0, le=100)
    """Weight of the KL term to the reference; 0 means no reference pass at all."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    kl_placement: Literal["loss", "loss_sequence", "reward"] = "loss"
    """Per token in the loss, one sum per completion in the loss, or subtracted from the reward."""
    kl_ratio_weight: bool = False
    """Multiply the KL term by the ratio ρ: the unbiased gradient where the sampler lags behind."""
    kl_target: float | None = Field(None, gt=0)
    """Adaptive beta: nats a token that beta steers the KL towards; None keeps beta as it is."""
    kl_horizon: int = Field(10_000, ge=1)
    """Completions over which adaptive beta may move by 20 %."""

    importance_correction: ImportanceCorrection = "auto"
    """Weight by π_train/π_sampler, which differ in their rounding; auto: only where the sampler is another
    program than the trainer."""
    importance_cap: float = Field(3.0, gt=1, le=1000)

    max_staleness: int = Field(0, ge=0, le=1)
    """Optimiser steps that a rollout's policy may lag behind. 1: the next step is sampled while this one is
    trained; its rollouts are one step off-policy, which importance weights correct."""
    temperature: float = Field(1.0, gt=0, le=10)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)
    stop: Annotated[Listed[Stop], Field(max_length=MAX_STOPS), BeforeValidator(_one_or_more, Stops)] = ()
    """A completion ends after the first of these; they stay in its text."""
    max_completion_tokens: int = Field(256, ge=1, le=131_072)
    max_turns: int = Field(8, ge=1, le=128)
    """Times the model may speak in one completion, where the job has tools."""
    mask_truncated_completions: bool = False
    """Do not train on completions that were cut; they stay in their group's baseline."""
    overlong_buffer_tokens: int = Field(0, ge=0)
    """DAPO's soft punishment: from this many tokens before the limit on the reward falls linearly."""
    overlong_penalty: float = Field(1.0, gt=0, le=1000)
    """What a completion of max_completion_tokens loses."""

    dynamic_sampling: int = Field(0, ge=0, le=20)
    """Rounds in which groups without signal are replaced by fresh prompts (DAPO)."""
    train_groups_without_signal: bool = False
    """Train them for their KL term instead of dropping them."""
    curriculum: Literal["none", "rest"] = "none"
    """rest: prompts without signal (solved or hopeless) rest for 1, 2, 4, 8 epochs."""
    self_distillation: SelfDistillation | None = None

    max_skipped_steps: PositiveInt = 20
    """Steps without signal in a row after which the job fails with `no_signal`."""
    max_grader_error_rate: float = Field(0.5, gt=0, le=1)
    """Share of a step's completions that may be unscorable before the job fails."""
    grader_timeout_seconds: float = Field(30.0, gt=0, le=3600)
    """Deadline of one completion's grading; a grader that hangs costs that completion only."""

    eval_temperature: float = Field(0.0, ge=0, le=10)
    """0: greedy."""
    guards: Listed[Guard] = Field(default_factory=default_guards, max_length=32)
    """What is watched and what happens then."""
    early_stopping: EarlyStopping | None = None

    @property
    def rows_per_step(self) -> int:
        return self.prompts_per_step

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        # A stated loss brings its own clip range, which beats the recipe's.
        data = expand_loss_type(expand_recipe(expand_loss_type(rename_aliases(data, ALIASES))))
        data = expand_multiplied(data, "group_size", "compute_multiplier", lambda m: max(2, round(8 * m)))
        data = expand_multiplied(data, "prompts_per_step", "batch_size", lambda size: size)
        return expand_learning_rate(data, default=1e-6 if data.get("lora") == "full" else 1e-5)

    @field_validator("top_p", "top_k")
    @classmethod
    def _whole_support(cls, value: float, info: ValidationInfo) -> float:
        if value != cls.model_fields[str(info.field_name)].default:
            raise ValueError(
                "refused: the sampler would draw from a truncated distribution while the loss compares whole "
                "ones, which biases every ratio; lower temperature instead (top_p 1 and top_k 0 are accepted)"
            )
        return value

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if self.overlong_buffer_tokens > self.max_completion_tokens:
            message = "overlong_buffer_tokens cannot exceed max_completion_tokens"
            raise problem_at(message, "overlong_buffer_tokens")
        if self.max_staleness and self.loss_type == "reinforce":
            message = "max_staleness needs a loss with a ratio: reinforce takes every rollout for its own"
            raise problem_at(message, "max_staleness")
        if self.kl_target is not None and self.beta == 0:
            raise problem_at("kl_target needs beta above 0: a beta of 0 stays 0", "kl_target")
        for index, guard in enumerate(self.guards):
            if self.beta == 0 and guard.action == "raise_beta":
                message = "a guard's raise_beta needs beta above 0: twice 0 is 0"
                raise problem_at(message, "guards", index, "action")
        if self.self_distillation is not None and self.self_distillation.alone and self.beta > 0:
            message = "self_distillation.alone trains without the GRPO loss: set beta to 0"
            raise problem_at(message, "self_distillation", "alone")
        return self
