"""The result of preflight, and the error that refuses a request."""

import re
from dataclasses import dataclass, field

from grpo_engine.config.job import Method, hyperparameters_of
from service.jobs.intake.estimate import RowTokens
from service.jobs.intake.model_size import ModelShape
from service.jobs.model.dataset import Problem, Problems
from service.platform.errors import InvalidRequest

SHOWN_PROBLEMS = 10


@dataclass
class Report:
    """A job may be queued if `problems` is empty."""

    method: Method
    """The method of the queued job, expanded."""
    problems: Problems = field(default_factory=Problems)
    warnings: list[dict[str, str]] = field(default_factory=list)
    """`code` and `message` each, as in the job."""
    num_training_rows: int = 0
    num_validation_rows: int = 0
    training_tokens: RowTokens | None = None
    """None: the rows' lengths were not counted."""
    shape: ModelShape | None = None
    """None: the model's weights are not on this machine."""
    on_gpu: bool = False

    def warn(self, code: str, message: str) -> None:
        self.warnings.append({"code": code, "message": message})

    @property
    def total_steps(self) -> int:
        return hyperparameters_of(self.method).total_steps(max(1, self.num_training_rows))


class InvalidJob(InvalidRequest):
    """A refused job: place and code of the first problem, and all problems."""

    def __init__(self, problems: list[Problem]) -> None:
        first = problems[0]
        message = f"{len(problems)} problems: {in_short(problems)}" if len(problems) > 1 else first.message
        super().__init__(message, param=first.param, code=first.code)
        self.problems = [{"param": problem.param, "message": problem.message} for problem in problems]


def in_short(problems: list[Problem]) -> str:
    """The first ten kinds of problems; a problem that many rows have is stated once."""
    alike: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        reason = problem.message.removeprefix(problem.param)
        alike.setdefault((re.sub(r"\[\d+\]", "[]", problem.param), reason), []).append(problem)
    kinds = list(alike.values())
    shown = [
        first.message + (f" (and {len(others)} more like it)" if others else "")
        for first, *others in kinds[:SHOWN_PROBLEMS]
    ]
    num_left = sum(map(len, kinds[SHOWN_PROBLEMS:]))
    return "; ".join(shown) + (f"; and {num_left} more" if num_left else "")
