"""`/v1/fine_tuning/suites`: the tasks that a job's `dataset` may name."""

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from service.platform.errors import Unprocessable
from service.suites.child_process import list_tasks
from service.suites.models import SuiteError
from service.web.auth import Reader

router = APIRouter(prefix="/v1/fine_tuning/suites", tags=["suites"])


class SuiteTaskRead(BaseModel):
    task: str
    levels: int | None
    """Number of levels of the task's curriculum; null: it has none."""


class SuiteTaskList(BaseModel):
    object: Literal["list"] = "list"
    data: list[SuiteTaskRead]


@router.get("/reasoning_gym")
def list_reasoning_gym_tasks(_principal: Reader) -> SuiteTaskList:
    """The tasks of Reasoning Gym by name; 422 if the package is missing where the API runs."""
    try:
        tasks = list_tasks()
    except SuiteError as error:
        raise Unprocessable(f"{error}.", code=error.code) from None
    return SuiteTaskList(data=[SuiteTaskRead(**each) for each in tasks])
