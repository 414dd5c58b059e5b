"""GRPO and its relatives: the options of a reinforcement job, and the rules between them."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from grpo_engine.config.guards import Guard, default_guards
from grpo_engine.config.hyperparameters import LEAST_TEMPERATURE, Auto, Hyperparameters, PositiveInt
from grpo_engine.config.recipes import (
    ALIASES,
    expand_learning_rate,
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
    """A single text is a list of one, as in OpenAI's API."""
    return (value,) if isinstance(value, str) else value


class SelfDistillation(Input):
    """SDPO (arXiv 2601.20802): the policy that sees feedback teaches the policy that does not."""

    weight: float = Field(1.0, gt=0, le=1000)
    """Factor of the distillation loss, a mean over the tokens of the distilled attempts."""
    feedback: Literal["auto", "grader", "sibling"] = "auto"
    """What the teacher sees: the grader's message, a successful sibling, or (auto) whichever exist."""
    success_reward: float = 1.0
    """Attempts with a lower reward have failed; siblings with at least this reward are successes."""
    alone: bool = False
    """Train on the distillation loss only, without the GRPO loss."""
    top_k: int | None = Field(None, ge=1, le=100_000)
    """Compare the teacher's k most likely tokens, and the others as one outcome; null: the whole
    vocabulary."""
    template: str = Field(
        "{prompt}\n\n{feedback}\n\nAnswer the original question again, correctly.", max_length=20_000
    )
    """Template of the teacher's last user turn: `{prompt}` is the student's turn, `{feedback}` the feedback
    on the attempt."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if "{feedback}" not in self.template or "{prompt}" not in self.template:
            raise problem_at("template needs {prompt} and {feedback}", "template")
        return self


class EarlyStopping(Input):
    """End the job when the held-out reward no longer rises."""

    patience: PositiveInt = 3
    """Consecutive evaluations without improvement after which the job ends."""
    min_improvement: float = Field(0.0, ge=0)
    """Minimum rise of the mean held-out reward over the best so far that counts as improvement."""


class ReinforcementHyperparameters(Hyperparameters):
    """GRPO (DeepSeekMath, arXiv 2402.03300) and its relatives."""

    recipe: Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo", "sapo", "rloo", "reinforce_plus_plus"] = (
        "grpo"
    )
    """Named set of defaults; fields of the request override it, and the response shows the result."""
    group_size: int = Field(8, ge=2, le=1024)
    """Completions per prompt (G); their mean reward is the baseline, so at least 2."""
    reasoning_effort: Literal["default", "low", "medium", "high"] = "default"
    """OpenAI's option for its own models; it is accepted, but has no effect."""
    compute_multiplier: Auto | Annotated[float, Field(gt=1e-5, le=10)] = "auto"
    """Multiplies the default group_size; an alternative to group_size."""
    prompts_per_step: int = Field(8, ge=1, le=4096)
    """Prompts per step, each with group_size completions."""
    num_iterations: int = Field(1, ge=1, le=64)
    """Optimiser steps on each step's completions; above 1, old log-probabilities are stored."""

    advantage: Advantage = "group_std"
    """How rewards become advantages: normalised by group or batch, leave-one-out, per part or per step."""
    advantage_ddof: int = Field(1, ge=0, le=1)
    """Degrees of freedom of the standard deviation: 1 as in TRL, 0 for the textbook z-score."""
    loss_type: LossType = "grpo"
    """Policy loss; it sets the default clip range (gspo, cispo) and how tokens are averaged."""
    epsilon_low: float = Field(0.2, gt=0, lt=1)
    """The ratio is clipped from below at 1 - epsilon_low."""
    epsilon_high: float = Field(0.2, gt=0, le=100)
    """The ratio is clipped from above at 1 + epsilon_high; for cispo it is the bound itself."""
    delta: float | None = Field(None, gt=1, le=1000)
    """Two-sided clip: upper bound of the ratio also for negative advantages; null: none."""
    sapo_temperature_positive: float = Field(1.0, gt=0, le=100)
    """Temperature of sapo's soft gate for positive advantages; higher values gate more sharply."""
    sapo_temperature_negative: float = Field(1.05, gt=0, le=100)
    """Temperature of sapo's soft gate for negative advantages."""
    entropy_coef: float = Field(0.0, ge=0, le=10)
    """Entropy bonus: this factor times the mean token entropy is subtracted from the loss."""
    top_entropy_quantile: float = Field(1.0, gt=0, le=1)
    """Train only this share of a step's tokens, those with the highest entropy; 1: all."""

    beta: float = Field(0.04, ge=0, le=100)
    """Weight of the KL divergence from the reference model; 0 needs no reference pass."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the KL divergence: k1 (unbiased), k2 (squared), k3 (unbiased, never negative)."""
    kl_placement: Literal["loss", "loss_sequence", "reward"] = "loss"
    """Where the KL term is applied: in the loss per token, in the loss summed per completion, or subtracted
    from the reward."""
    kl_ratio_weight: bool = False
    """Multiply the KL term by the ratio, for an unbiased gradient if the sampler lags behind."""
    kl_target: float | None = Field(None, gt=0)
    """Adapt beta so that the KL approaches this value in nats per token; null: beta is constant."""
    kl_horizon: int = Field(10_000, ge=1)
    """Completions over which adaptive beta may change by 20%."""

    importance_correction: ImportanceCorrection = "auto"
    """Correct for a sampler whose probabilities differ from the trainer's; auto: per token for the torch
    sampler in bfloat16, per completion if another program samples, otherwise no correction."""
    importance_cap: float = Field(3.0, gt=1, le=1000)
    """Ratio above which importance weights are truncated or masked."""

    max_staleness: int = Field(0, ge=0, le=1)
    """Optimiser steps that the sampling policy may lag behind; 1: sample the next step during training."""
    temperature: float = Field(1.0, ge=LEAST_TEMPERATURE, le=10)
    """Sampling temperature of the completions."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Only 1 is accepted: a truncated distribution would bias every ratio."""
    top_k: int = Field(0, ge=0)
    """Only 0 is accepted: a truncated distribution would bias every ratio."""
    stop: Annotated[Listed[Stop], Field(max_length=MAX_STOPS), BeforeValidator(_one_or_more, Stops)] = ()
    """Up to 16 texts that end a completion; they stay in its text."""
    max_completion_tokens: int = Field(256, ge=1, le=131_072)
    """Maximum tokens of a completion; longer ones are cut."""
    max_turns: int = Field(8, ge=1, le=128)
    """Maximum turns of the model in one completion, for jobs with tools."""
    mask_truncated_completions: bool = False
    """Do not train on cut completions; they still count in the group's baseline."""
    overlong_buffer_tokens: int = Field(0, ge=0)
    """DAPO's soft punishment: the reward falls linearly over this many tokens before the limit; 0: off."""
    overlong_penalty: float = Field(1.0, gt=0, le=1000)
    """Penalty for a completion of max_completion_tokens."""

    dynamic_sampling: int = Field(0, ge=0, le=20)
    """Rounds in which groups without signal are replaced by new prompts (DAPO); 0: off."""
    train_groups_without_signal: bool = False
    """Train groups without signal for their KL term instead of dropping them."""
    curriculum: Literal["none", "rest", "levels"] = "none"
    """rest: prompts without signal (solved or hopeless) are skipped for 1, 2, 4, then 8 epochs. levels: rows
    with a higher `level` come once 75% of the completions for the level below pass."""
    self_distillation: SelfDistillation | None = None
    """Learn from graders' feedback or successful siblings (SDPO); null: off."""

    max_skipped_steps: PositiveInt = 20
    """Consecutive steps without signal after which the job fails with `no_signal`."""
    max_grader_error_rate: float = Field(0.5, gt=0, le=1)
    """Maximum share of a step's completions that may be unscorable before the job fails."""
    grader_timeout_seconds: float = Field(30.0, gt=0, le=3600)
    """Time limit for grading one completion; beyond it, that completion is unscorable."""

    eval_temperature: float = Field(0.0, ge=0, le=10)
    """Sampling temperature of evaluations; 0: greedy."""
    guards: Listed[Guard] = Field(default_factory=default_guards, max_length=32)
    """Rules that watch the run, and their actions; by default all rules as warnings."""
    early_stopping: EarlyStopping | None = None
    """End the job when the held-out reward stops improving; null: never."""

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
            message = "max_staleness needs a loss with a ratio: reinforce treats every rollout as on-policy"
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
