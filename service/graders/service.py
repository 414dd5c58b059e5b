"""Runs a grader on one completion, as in training, and checks that this deployment supports it.

Rules that may hang or crash run in a grading process that is killed at the deadline; a few at a time.
Boundary: no HTTP, no database.
"""

import time
from collections.abc import Mapping

from grpo_engine.contract.records import GradeError, Score
from grpo_engine.graders import Grader, make_sample
from grpo_engine.graders.model_spending import ModelUsage
from grpo_engine.graders.pool.pool import Grading
from grpo_engine.graders.printed import lines_of
from grpo_engine.graders.rules.score_model import ScoreModel, usage
from service.graders.schemas import RunErrors, RunMetadata, RunRequest, RunResponse
from service.jobs.intake.checks.grader import check_grader, with_paths
from service.jobs.intake.checks.method import check_formula
from service.jobs.model.dataset import Problems
from service.jobs.model.methods import leaves
from service.platform.catalog import Catalog
from service.platform.errors import InvalidRequest
from service.platform.logs import mask
from service.web.limits import ConcurrencyLimit

RESERVED_FIELDS = ("messages", "tools")
"""Fields of a dataset row that graders do not see in `item`."""
DEADLINE_SECONDS = 120.0
"""Time limit of one grader run, as in OpenAI's API."""
_run_limit = ConcurrencyLimit("grader runs", per_tenant=4, overall=8)
"""Limits runs of rules that need a process or wait for a server."""


def check(grader: Grader, catalog: Catalog) -> None:
    """Raise InvalidRequest, naming the field, if this deployment does not support the grader."""
    problems = Problems()
    check_grader("grader", grader, catalog, problems)
    check_formula("grader", grader, problems)
    if problems.found:
        first = problems.found[0]
        raise InvalidRequest(first.message, param=first.param, code=first.code)


def run(tenant: str, request: RunRequest, catalog: Catalog) -> RunResponse:
    """The grader's score of the sample. Raises InvalidRequest, and TooManyRequests at the limit of runs."""
    check(request.grader, catalog)
    before, started = usage(), time.perf_counter()
    score = _score(tenant, request, with_paths(request.grader, catalog))
    seconds = time.perf_counter() - started
    return _response(request, score, seconds, _used(before, usage()))


def _score(tenant: str, request: RunRequest, grader: Grader) -> Score:
    item = {key: value for key, value in (request.item or {}).items() if key not in RESERVED_FIELDS}
    sample = make_sample(request.model_sample, num_tokens=request.num_tokens)
    if grader.execution == "inline":
        return grader.grade(sample, item)
    with (
        _run_limit.slot(tenant),
        Grading(grader, processes=1, deadline_seconds=DEADLINE_SECONDS) as grading,
    ):
        return grading.submit(sample, item).result()


def _used(before: Mapping[str, ModelUsage], after: Mapping[str, ModelUsage]) -> dict[str, ModelUsage]:
    """The judges' usage from `before` to `after`, by model; concurrent runs are counted together."""
    used = {}
    for model, now in after.items():
        earlier = before.get(model, ModelUsage())
        if now != earlier:
            fields = ModelUsage.model_fields
            used[model] = ModelUsage(**{name: getattr(now, name) - getattr(earlier, name) for name in fields})
    return used


def _response(
    request: RunRequest, score: Score, seconds: float, used: Mapping[str, ModelUsage]
) -> RunResponse:
    parts = dict(score.parts) if request.grader.type == "multi" else {}
    judges = [rule.model for _, rule in leaves("", request.grader) if isinstance(rule, ScoreModel)]
    spent = {model: used[model] for model in dict.fromkeys(judges) if model in used}
    tokens = sum(each.input_tokens + each.output_tokens for each in spent.values())
    return RunResponse(
        reward=0.0 if score.reward is None else score.reward,
        scorable=score.reward is not None,
        metadata=RunMetadata(
            name=request.grader.label,
            type=request.grader.type,
            execution_time=seconds,
            scores=parts,
            token_usage=tokens if judges else None,
            sampled_model_name=judges[0] if len(set(judges)) == 1 else None,
            errors=_flags(list(score.errors.values())),
        ),
        sub_rewards=parts,
        grader_errors=score.errors,
        feedback=score.feedback,
        explanations={part: list(found) for part, found in score.explanations.items()},
        printed={part: "\n".join(lines_of(mask(text))) for part, text in score.printed.items()},
        model_grader_token_usage_per_model={model: each.model_dump() for model, each in spent.items()},
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
