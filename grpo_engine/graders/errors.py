"""Why a completion has no reward, as an exception inside graders.

Boundary: it never leaves `GraderBase.measure`, which turns it into a `GradeError`.
"""

from __future__ import annotations

from typing import Literal

from grpo_engine.graders.feedback import storable

ErrorCode = Literal[
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


class UnscorableError(Exception):
    """This completion cannot be scored; the code is one of OpenAI's grader errors."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code: ErrorCode = code
        self.message = storable(message)
