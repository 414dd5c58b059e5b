"""Bodies of the rollout endpoints.

Rewards, parts and advantages are those that the engine recorded; the service computes `mean_reward` and the
results of rescoring.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from grpo_engine.contract.records import Episode, Explanation, FinishReason, GradeError, ToolTurn
from service.graders.schemas import SentGrader
from service.web.pagination import MAX_NUMBER
from service.web.validation import RequestBody


class CompletionFields(BaseModel):
    """One completion."""

    text: str
    num_tokens: Annotated[int, BeforeValidator(len)] = Field(0, validation_alias="token_ids")
    """Including end-of-sequence; exports have the token ids."""
    reward: float | None
    """null: no grader could score it. It is excluded from the group's mean."""
    parts: dict[str, float | None] = {}
    """Reward of each part of the grader."""
    errors: dict[str, GradeError] = {}
    """Part → why it could not be scored."""
    feedback: str = ""
    """The reason why the reward is not full, if the grader gave one."""
    explanations: dict[str, list[Explanation]] = {}
    """Part → the worst tests of a `code_tests` or the worst steps of a `process`, at most 12."""
    advantage: float = 0.0
    finish_reason: FinishReason
    """`length`: cut at `max_completion_tokens`."""
    policy_version: int = 0
    turns: int = 1
    """Number of the model's turns; more than one if it called tools or acted in an environment."""
    episode: Episode | None = None
    """The episode in an environment: its turns with action, observation, reward and `done`, and the reason if
    its session failed."""
    tool_turns: list[ToolTurn] = []
    """The turns and the tools' answers, if the completion called tools; empty for older jobs."""


class MessageRead(BaseModel):
    role: str
    content: str


class GroupFields(BaseModel):
    """One prompt of a step."""

    step: int
    split: str
    set: str | None = None
    """Name of the retention set, if `split` is retention."""
    position: int
    """Position of the prompt in its step and split, from 0."""
    has_signal: bool
    mean_reward: float | None
    """Mean reward of the group's scored completions, from which their advantages are computed."""
    row: int
    """Index of the prompt in the dataset, from 0."""
    prompt: str
    """The prompt as the model read it, rendered by its chat template."""
    messages: list[MessageRead] = []
    """The prompt's messages; empty without a chat template, and for jobs older than this field."""
    reference: dict[str, Any] = {}
    """The row's other fields, such as the right answer; long values are cut."""


class RolloutRead(GroupFields):
    """One prompt of a step with its completions."""

    object: Literal["fine_tuning.job.rollout"] = "fine_tuning.job.rollout"
    id: str
    completions: list[CompletionFields]


class CompletionRead(GroupFields, CompletionFields):
    """One completion, and the group that it was compared in."""

    object: Literal["fine_tuning.job.rollout.completion"] = "fine_tuning.job.rollout.completion"
    id: str
    rollout_id: str
    """The group's id."""
    index: int
    """Index of the completion in its group, from 0."""


class SplitSteps(BaseModel):
    split: str
    steps: list[int]
    """Steps with rollouts, in ascending order."""
    groups: list[int]
    """Number of groups of each of these steps."""


class RolloutOverview(BaseModel):
    """Steps and reward parts that can be selected."""

    object: Literal["fine_tuning.job.rollout_overview"] = "fine_tuning.job.rollout_overview"
    parts: list[str]
    """Names for `fired` and `not_fired`."""
    data: list[SplitSteps]


Advantage = Literal["group_std", "mean_only", "batch_std", "leave_one_out", "reinforce_plus_plus", "gdpo"]
"""The engine's estimators except `process`, because rewards of single steps are not stored."""


class RescoreRequest(RequestBody):
    """Another grader, and the rollouts to score with it: whole steps, the newest first."""

    grader: SentGrader
    """The grader to compare with the job's own."""
    split: Literal["train", "validation"] = "train"
    """Rollouts of training or of evaluations."""
    from_step: int | None = Field(None, ge=0, le=MAX_NUMBER)
    """First step, inclusive."""
    to_step: int | None = Field(None, ge=0, le=MAX_NUMBER)
    """Last step, inclusive."""
    limit: int = Field(512, ge=1, le=2000)
    """Maximum completions, in whole steps from the newest."""
    advantage: Advantage | None = None
    """Estimator that turns rewards into advantages; null: the job's own."""


class RescoreSide(BaseModel):
    """Results under the job's own grader, or under the new one."""

    mean_reward: float | None
    """Mean reward of all scored completions."""
    share_with_signal: float
    """Share of groups that have signal."""
    num_unscored: int
    """Completions that the grader could not score; they do not count as 0."""


class ErrorCount(BaseModel):
    """One reason why the new grader could not score, and how often."""

    part: str
    code: str
    message: str
    count: int


class RescoreSummary(BaseModel):
    from_step: int
    to_step: int
    num_groups: int
    num_groups_skipped: int
    """Groups left out because their completions called tools or acted in an environment: the answers are not
    stored in full."""
    num_completions: int
    before: RescoreSide
    after: RescoreSide
    rank_agreement: float | None
    """Mean over the groups of Kendall's tau-b; null if no group has signal on both sides."""
    num_sign_changes: int
    """Number of completions whose advantage changed its sign."""
    errors: list[ErrorCount]


class RescoredCompletion(BaseModel):
    index: int
    reward_before: float | None
    reward_after: float | None
    advantage_before: float
    advantage_after: float
    parts: dict[str, float | None]
    """Score of each part of the new grader."""
    errors: dict[str, GradeError]


class RescoredGroup(BaseModel):
    id: str
    step: int
    split: str
    position: int
    row: int
    mean_before: float | None
    mean_after: float | None
    has_signal_before: bool
    has_signal_after: bool
    rank_agreement: float | None
    num_sign_changes: int
    completions: list[RescoredCompletion]


class RescoreRead(BaseModel):
    """The differences. The job itself does not change."""

    object: Literal["fine_tuning.job.rescore"] = "fine_tuning.job.rescore"
    grader: dict[str, Any]
    """The grader with all defaults."""
    advantage: str
    summary: RescoreSummary
    data: list[RescoredGroup]
