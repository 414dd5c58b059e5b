"""Bodies of the grader endpoints, in OpenAI's shape. Graders are the engine's own classes.

Added to OpenAI's: `num_tokens` in requests; `scorable`, `grader_errors`, `feedback`, `explanations` and
`printed` in responses.
"""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field

from grpo_engine.contract.records import Explanation, GradeError
from grpo_engine.graders import Grader
from service.jobs.model.openai_terms import own_rule
from service.web.validation import RequestBody

SentGrader = Annotated[Grader, BeforeValidator(own_rule)]
"""A grader as users write it, or in the form in which a job returns it."""


class ValidateRequest(RequestBody):
    grader: SentGrader
    """The grader to check."""


class ValidateResponse(BaseModel):
    grader: dict[str, Any]
    """The grader with all defaults; the `graders` of a multi are always keyed by name."""


class RunRequest(RequestBody):
    grader: SentGrader
    """The grader to run."""
    model_sample: str
    """Text of the completion; `sample.output_json` exists if it is JSON."""
    item: dict[str, Any] | None = None
    """The dataset row; graders do not see its `messages` and `tools`."""
    num_tokens: int = Field(0, ge=0, le=10_000_000)
    """Length of the completion in tokens, for `length` graders; 0: unknown."""


class RunErrors(BaseModel):
    """OpenAI's fourteen fields, all always present."""

    formula_parse_error: bool = False
    sample_parse_error: bool = False
    truncated_observation_error: bool = False
    unresponsive_reward_error: bool = False
    invalid_variable_error: bool = False
    other_error: bool = False
    python_grader_server_error: bool = False
    python_grader_server_error_type: str | None = None
    python_grader_runtime_error: bool = False
    python_grader_runtime_error_details: str | None = None
    model_grader_server_error: bool = False
    model_grader_refusal_error: bool = False
    model_grader_parse_error: bool = False
    model_grader_server_error_details: str | None = None


class RunMetadata(BaseModel):
    name: str
    type: str
    execution_time: float
    """Duration of the grading in seconds."""
    scores: dict[str, float | None]
    token_usage: int | None = None
    sampled_model_name: str | None = None
    errors: RunErrors


class RunResponse(BaseModel):
    reward: float
    """0 if `scorable` is false: OpenAI's clients need a number."""
    scorable: bool
    """Whether the grader gave a reward. In training an unscorable completion is left out, never a 0."""
    metadata: RunMetadata
    sub_rewards: dict[str, float | None]
    """Reward by part of a multi; null if a part could not be scored."""
    grader_errors: dict[str, GradeError]
    """Part → code and message."""
    feedback: str
    """The reason why the reward is not full; empty if the grader gave none."""
    explanations: dict[str, list[Explanation]]
    """Part → the tests of a `code_tests` or the steps of a `process`."""
    printed: dict[str, str]
    """Part → what a `python` grader printed, at most 2,000 characters, without secrets of known formats."""
    model_grader_token_usage_per_model: dict[str, Any] = {}
