"""`/v1/fine_tuning/alpha/graders`: check a grader, run it on a completion."""

from fastapi import APIRouter

from service.graders import service
from service.graders.schemas import RunRequest, RunResponse, ValidateRequest, ValidateResponse
from service.web.auth import Reader
from service.web.dependencies import CatalogDep

router = APIRouter(prefix="/v1/fine_tuning/alpha/graders", tags=["graders"])


@router.post("/validate")
def validate_grader(request: ValidateRequest, _principal: Reader, catalog: CatalogDep) -> ValidateResponse:
    """The grader with all defaults; 400 with `param` for an invalid field."""
    service.check(request.grader, catalog)
    return ValidateResponse(grader=request.grader.model_dump(mode="json"))


@router.post("/run")
def run_grader(request: RunRequest, principal: Reader, catalog: CatalogDep) -> RunResponse:
    """The grader's score of `model_sample`, as in training; at most two minutes."""
    return service.run(principal.tenant, request, catalog)
