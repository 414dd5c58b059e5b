"""Plain records that cross the engine's interface: samples, scores, rollouts."""

import json
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError

from grpo_engine.contract.described import Described


class Record(BaseModel):
    """A frozen record that refuses unknown keys, so that a typo is an error where it is made."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Input(Record, Described):
    """Part of a request. Strict: "8" and true are not numbers. Field docstrings become descriptions."""

    model_config = ConfigDict(strict=True)


def filled_in(*names: str) -> Callable[[dict[str, Any]], None]:
    """For `json_schema_extra`: declare these fields optional, although their defaults are not fixed."""

    def relax(schema: dict[str, Any]) -> None:
        schema["required"] = [name for name in schema["required"] if name not in names]

    return relax


def first_problem(error: ValidationError) -> tuple[str, str]:
    """Place and message of the first error, never the input, which may hold keys."""
    first = error.errors(include_input=False, include_context=False, include_url=False)[0]
    return ".".join(map(str, first["loc"])), first["msg"]


def storable(text: str) -> str:
    """The text with `?` for unpaired surrogates, which JSON can escape but no record can store."""
    return text.encode("utf-8", "replace").decode("utf-8")


LARGEST_REWARD = 1e15
"""Largest absolute reward. Sums and squares of a group's rewards remain finite, even in float32."""

REFUSED_CHARACTERS = 300


def is_reward(value: float) -> bool:
    """Whether a completion can have this reward; infinite values and NaN are not rewards."""
    return abs(value) <= LARGEST_REWARD


def refused_reward(value: object) -> str:
    """Why this JSON value is not a reward; a string keeps its quotes, so that it does not look like a
    number."""
    shown = json.dumps(value, ensure_ascii=False)[:REFUSED_CHARACTERS]
    return f"the reward {storable(shown)} is not a finite number up to {LARGEST_REWARD:g}"


Item = TypeVar("Item")
Listed = Annotated[tuple[Item, ...], Strict(False)]
"""A JSON list, kept as a tuple."""


class FinishReason(StrEnum):
    """Why a completion ended."""

    STOP = "stop"
    """End-of-sequence token or a stop string."""
    LENGTH = "length"
    """Truncated at `max_completion_tokens`."""


class Sample(Record):
    """One completion as graders see it (`{{sample.…}}` in templates)."""

    output_text: str
    output_json: Any = None
    """`output_text` parsed as JSON; None if it does not parse or is nested too deeply."""
    output_tools: tuple[dict[str, Any], ...] = ()
    num_tokens: int = 0
    """Completion tokens, end-of-sequence included."""
    finish_reason: FinishReason = FinishReason.STOP
    environment_reward: float | None = None
    """Reward of the completion's environment; None: there is none."""


GradeErrorCode = Literal[
    "formula_parse_error",
    "sample_parse_error",
    "truncated_observation_error",
    "unresponsive_reward_error",
    "invalid_variable_error",
    "other_error",
    "python_grader_server_error",
    "python_grader_runtime_error",
    "model_grader_server_error",
    "model_grader_refusal_error",
    "model_grader_parse_error",
]
"""OpenAI's grader errors."""


class GradeError(Record):
    """Why a grader could not score a completion. It is never a reward of 0."""

    code: GradeErrorCode
    message: str


class StepScore(Record):
    """Reward of one reasoning step of a completion (process supervision)."""

    end: int
    """Characters of `output_text` up to and including this step."""
    reward: float


MAX_EXPLANATION_CHARACTERS = 200
ExplanationText = Annotated[str, Field(max_length=MAX_EXPLANATION_CHARACTERS)]


class Explanation(Record):
    """One check inside a grader. It is for people only and never part of a prompt, because it may hold hidden
    results."""

    label: ExplanationText
    """Name of the check, such as `test 2 of 5: add(1, 2)` or `step 3 of 4`."""
    passed: bool | None = None
    score: float | None = None
    """Reward of a step; None for a test."""
    got: ExplanationText = ""
    expected: ExplanationText = ""
    detail: ExplanationText = ""
    """Why there is no result, such as a timeout; for a step, its feedback."""


class Score(Record):
    """A grader's result for one completion."""

    reward: float | None
    """None: the completion is unscorable; it is left out of its group's mean and spread and has advantage
    0."""
    parts: dict[str, float | None] = {}
    """Reward of each named part; for a single grader its own name → reward."""
    errors: dict[str, GradeError] = {}
    """Part name → why it could not be scored."""
    feedback: str = ""
    """Why the reward is not full; empty if the reason is unknown."""
    steps: tuple[StepScore, ...] = ()
    """Rewards of the completion's reasoning steps, for graders that score steps."""
    explanations: dict[str, tuple[Explanation, ...]] = {}
    """Part → its tests or steps, a bounded number of them."""
    printed: dict[str, str] = {}
    """Part → what its code printed, cut at a maximum length and otherwise unchanged."""


class ToolAnswer(Record):
    """The answer to one tool call."""

    name: str
    """The tool's name as the model wrote it; empty if the call could not be read."""
    text: str
    """The answer, shortened."""
    failed: bool = False
    """Whether the call could not be read or run, or its tool reported a failure."""


class EpisodeTurn(Record):
    """One turn of the model in an environment, and what followed it."""

    action: str
    """The model's text, shortened."""
    observation: str
    """The environment's answer, shortened; the last one is not shown to the model. Empty if the turn
    called tools."""
    reward: float | None = None
    """None: the environment gave no reward, or the text was not a valid action."""
    done: bool = False
    """Whether the environment ended the episode."""
    answers: tuple[ToolAnswer, ...] = ()
    """Answers of the tools that the turn called; empty if it was an action."""


class Episode(Record):
    """A completion's episode in an environment."""

    environment: str
    """Name in the job's `environments`."""
    seed: int
    """Seed of its `reset`, the same for all completions of a group."""
    turns: tuple[EpisodeTurn, ...] = ()
    reward: float | None = None
    """Last reward or sum of rewards, as the environment's options say; None: there was none."""
    failure: str | None = None
    """Why the session failed, so that the completion is unscorable; None: it did not."""
    unanswered: str = ""
    """The model's last turn, shortened, if the environment did not answer it: the turn was cut, or the
    session failed."""


class ToolTurn(Record):
    """One turn of the model in a job with tools, and the answers to its calls."""

    text: str
    """The model's text, shortened."""
    answers: tuple[ToolAnswer, ...] = ()
    """Empty if the turn has no calls, or if they were not run because the completion ended."""


class CompletionRecord(Record):
    """One completion of a group, as stored and shown."""

    text: str
    token_ids: tuple[int, ...]
    """Completion tokens only, end-of-sequence included if it was sampled."""
    reward: float | None
    parts: dict[str, float | None] = {}
    errors: dict[str, GradeError] = {}
    feedback: str = ""
    explanations: dict[str, tuple[Explanation, ...]] = {}
    advantage: float
    """0 without signal and for an unscorable completion; with step rewards the mean over tokens."""
    finish_reason: FinishReason
    policy_version: int
    turns: int = 1
    """The model's turns; more than one if it called tools or acted in an environment."""
    episode: Episode | None = None
    """Its episode, in a job with environments."""
    tool_turns: tuple[ToolTurn, ...] = ()
    """Its turns, if it called tools."""


OVERLONG = "overlong"
"""Part of a completion's reward under which the soft overlong punishment is shown."""


class PromptMessage(Record):
    """A message of a prompt. Its content is a part of the rendered prompt, so it is not stored twice."""

    role: str
    start: int = 0
    end: int = 0
    """Characters `start` to `end` of the prompt."""
    content: str = ""
    """The content, shortened; set only if the chat template changed it."""


class GroupRecord(Record):
    """One prompt of a step with its G completions."""

    row: int
    """Index of the prompt's row in the dataset, from 0."""
    prompt: str
    """The prompt as the model reads it, rendered by its chat template."""
    messages: tuple[PromptMessage, ...] = ()
    """The prompt's messages; empty for a prompt without a template."""
    reference: dict[str, Any] = {}
    """The row's other fields, which graders compare with; long values are cut."""
    completions: tuple[CompletionRecord, ...]
    has_signal: bool
    """False if all scored rewards are equal, so that there is nothing to learn from."""
