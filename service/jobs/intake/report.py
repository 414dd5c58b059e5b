"""The result of preflight, and the error that refuses a request."""

from dataclasses import dataclass, field

from grpo_engine.config.job import Method, hyperparameters_of
from grpo_engine.config.tools import Tool
from service.hub.models import HubModel
from service.jobs.intake.model_size import ModelShape
from service.jobs.intake.subject import RowTokens
from service.jobs.model.dataset import Problem, Problems
from service.platform.db import storable
from service.platform.errors import InvalidRequest

SHOWN_PROBLEMS = 10


@dataclass
class Report:
    """A job may be queued if `problems` is empty."""

    method: Method
    """The expanded method of the job to queue."""
    problems: Problems = field(default_factory=Problems)
    warnings: list[dict[str, str]] = field(default_factory=list)
    """`code` and `message` each, as in the job."""
    num_training_rows: int = 0
    num_validation_rows: int = 0
    training_tokens: RowTokens | None = None
    """None if the rows' lengths were not counted."""
    shape: ModelShape | None = None
    """None if the model's weights are not on this machine."""
    on_gpu: bool = False
    tools: tuple[Tool, ...] = ()
    """What the model may call, with the tools of MCP servers in their servers' place."""
    hub_model: HubModel | None = None
    """The hub model to add to the catalogue, if the job names one that is not in it yet."""

    def warn(self, code: str, message: str) -> None:
        # a message may quote a user's grader
        self.warnings.append({"code": code, "message": storable(message)})

    @property
    def total_steps(self) -> int:
        return hyperparameters_of(self.method).total_steps(max(1, self.num_training_rows))


class InvalidJob(InvalidRequest):
    """A refused job: place and code of the first problem, and the first hundred problems."""

    def __init__(self, problems: Problems) -> None:
        first = problems.found[0]
        message = (
            f"{problems.total:,} problems: {in_short(problems)}" if problems.total > 1 else first.message
        )
        super().__init__(message, param=first.param, code=first.code)
        self.problems = problems.listed()


def in_short(problems: Problems) -> str:
    """The first ten kinds of problems; a problem that many rows have is stated once, with their number."""
    kinds: dict[tuple[str, str], Problem] = {}
    for problem in problems.found:
        kinds.setdefault(problem.kind, problem)
    first_of_kinds = list(kinds.values())[:SHOWN_PROBLEMS]
    counts = [problems.alike(problem) for problem in first_of_kinds]
    shown = [
        problem.message + (f" (and {count - 1:,} more like it)" if count > 1 else "")
        for problem, count in zip(first_of_kinds, counts, strict=True)
    ]
    num_left = problems.total - sum(counts)
    return "; ".join(shown) + (f"; and {num_left:,} more" if num_left else "")
