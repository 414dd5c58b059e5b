"""Tries a grader on one completion, as training would.

Boundary: no HTTP, no database. The rules are the engine's; only OpenAI's answer shape is made here.
"""

from __future__ import annotations

import time

from grpo_engine.graders import grade, make_sample
from grpo_engine.records import GradeError, Score
from service.graders.schemas import RunErrors, RunMetadata, RunRequest, RunResponse

RESERVED_FIELDS = ("messages", "tools")
"""Of a dataset row; the rest is what graders see as `item`."""


def run(request: RunRequest) -> RunResponse:
    """The grader's score of the sample."""
    item = {key: value for key, value in (request.item or {}).items() if key not in RESERVED_FIELDS}
    started = time.perf_counter()
    score = grade(request.grader, make_sample(request.model_sample, num_tokens=request.num_tokens), item)
    return _response(request, score, time.perf_counter() - started)


def _response(request: RunRequest, score: Score, seconds: float) -> RunResponse:
    parts = dict(score.parts) if request.grader.type == "multi" else {}
    return RunResponse(
        reward=0.0 if score.reward is None else score.reward,
        scorable=score.reward is not None,
        metadata=RunMetadata(
            name=request.grader.label,
            type=request.grader.type,
            execution_time=seconds,
            scores=parts,
            errors=_flags(list(score.errors.values())),
        ),
        sub_rewards=parts,
        grader_errors=score.errors,
    )


def _flags(errors: list[GradeError]) -> RunErrors:
    details = {
        "python_grader_runtime_error": "python_grader_runtime_error_details",
        "python_grader_server_error": "python_grader_server_error_type",
        "model_grader_server_error": "model_grader_server_error_details",
    }
    fields: dict[str, bool | str] = {error.code: True for error in errors}
    fields |= {details[error.code]: error.message for error in errors if error.code in details}
    return RunErrors.model_validate(fields)
