"""Everything that can be known to be wrong about a job before anything is queued.

Model, files, every row, every template, the grader on trial completions, every row's length. Boundary:
reads storage and the model's folder, writes nothing; memory and time are not estimated here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from grpo_engine.config import Method, Reinforcement, Supervised, hyperparameters_of
from grpo_engine.graders import Grader
from service.catalog import Catalog, CatalogEntry
from service.db import Database
from service.errors import InvalidRequest
from service.jobs import repository
from service.jobs.dataset import Kind, Problem, Problems, Row, read_rows
from service.jobs.grader_trial import try_grader
from service.jobs.lengths import LengthCheck
from service.jobs.lineage import with_adapter_shape
from service.jobs.method_checks import check_method
from service.jobs.schemas import JobCreate
from service.models import File
from service.settings import Settings
from service.storage import ObjectMissing, Storage
from service.tokens import ModelText, ModelTextError, load_model_text

_method: TypeAdapter[Method] = TypeAdapter(Method)

TRIAL_ROWS = 3
SHOWN_PROBLEMS = 10


@dataclass
class Report:
    """What preflight found; a job may be queued where `problems` is empty."""

    method: Reinforcement | Supervised
    """Expanded: what a queued job will run with."""
    problems: Problems = field(default_factory=Problems)
    warnings: list[dict[str, str]] = field(default_factory=list)
    """`code` and `message` each, as in the job's own."""
    num_training_rows: int = 0
    num_validation_rows: int = 0

    def warn(self, code: str, message: str) -> None:
        self.warnings.append({"code": code, "message": message})

    @property
    def total_steps(self) -> int:
        return hyperparameters_of(self.method).total_steps(max(1, self.num_training_rows))


class InvalidJob(InvalidRequest):
    """A refused job: the first problem's place and code, and all problems beside them."""

    def __init__(self, problems: list[Problem]) -> None:
        first, num_problems = problems[0], len(problems)
        message = first.message
        if num_problems > 1:
            shown = "; ".join(problem.message for problem in problems[:SHOWN_PROBLEMS])
            more = f"; and {num_problems - SHOWN_PROBLEMS} more" if num_problems > SHOWN_PROBLEMS else ""
            message = f"{num_problems} problems: {shown}{more}"
        super().__init__(message, param=first.param, code=first.code)
        self.problems = problems

    def body(self) -> dict[str, object]:
        body = super().body()
        listed = [{"param": problem.param, "message": problem.message} for problem in self.problems]
        return {"error": {**body["error"], "problems": listed}}


@dataclass(frozen=True)
class Preflight:
    """The places that preflight looks at."""

    database: Database
    storage: Storage
    catalog: Catalog
    settings: Settings

    def check(self, tenant: str, job: JobCreate) -> Report:
        """All problems of a request, up to a hundred. Raises nothing for what a user may have got wrong."""
        report = Report(job.method)
        _warn_of_unused(job, report)
        with self.database.reading() as session:
            base = repository.base_model_name(session, tenant, job.model)
            files = repository.files_by_id(session, tenant, [job.training_file, job.validation_file])
            parent = repository.resolve_model(session, tenant, job.model)
        earlier = None if parent is None else _method.validate_python(parent.job.method)
        report.method = with_adapter_shape(job.method, earlier, report.problems)
        check_method(job.method, report.problems, report.warn)
        entry = self.catalog.find(base) if base else None
        if entry is None:
            reason = f"{job.model!r} is neither in the model catalogue nor one of your fine-tuned models"
            report.problems.add("model", reason, code="model_not_found")
        text = self._model_text(entry, report) if entry else None
        check = _FileCheck(self, report, entry, text)
        report.num_training_rows = check.rows_of("training_file", job.training_file, files)
        if job.validation_file is not None:
            report.num_validation_rows = check.rows_of("validation_file", job.validation_file, files)
        return report

    def _model_text(self, entry: CatalogEntry, report: Report) -> ModelText | None:
        if entry.folder is None:
            reason = f"{entry.path} is not on this machine"
            report.warn("lengths_unchecked", f"The lengths of the rows were not checked: {reason}.")
            return None
        try:
            return load_model_text(entry.folder)
        except ModelTextError as error:
            report.warn("lengths_unchecked", f"The lengths of the rows were not checked: {error}.")
            return None


@dataclass(frozen=True)
class _FileCheck:
    """The checks of one request's files."""

    places: Preflight
    report: Report
    entry: CatalogEntry | None
    text: ModelText | None

    def rows_of(self, param: str, file_id: str, files: dict[str, File]) -> int:
        """Number of usable rows of a file; what is wrong with it goes to the report."""
        problems, file = self.report.problems, files.get(file_id)
        if file is None:
            problems.add(param, f"there is no file {file_id}", code="file_not_found")
            return 0
        if file.purpose != "fine-tune":
            reason = f"{file_id} has the purpose {file.purpose!r}, not 'fine-tune'"
            problems.add(param, reason, code="invalid_file_purpose")
            return 0
        try:
            return self._count_checked(param, self.places.storage.lines(file.storage_key))
        except ObjectMissing:
            problems.add(param, f"the content of {file_id} is no longer stored", code="file_not_found")
            return 0

    def _count_checked(self, param: str, lines: Iterable[bytes]) -> int:
        kind: Kind = "reinforcement" if isinstance(self.report.method, Reinforcement) else "supervised"
        rows: Iterable[Row] = read_rows(
            lines,
            file=param,
            kind=kind,
            max_rows=self.places.settings.max_rows,
            problems=self.report.problems,
        )
        if self.text is not None:
            limits = [self.text.context_tokens, self.entry.max_context_tokens if self.entry else None]
            context_tokens = min((limit for limit in limits if limit is not None), default=None)
            check = LengthCheck(self.text, self.report.method, context_tokens, param, self.report.problems)
            rows = check.watch(rows)
        rows = self._graded(rows, param)
        return sum(1 for _ in rows)

    def _graded(self, rows: Iterable[Row], param: str) -> Iterator[Row]:
        """The same rows, after the grader's templates were resolved and its trial was run on them."""
        if not isinstance(self.report.method, Reinforcement):
            yield from rows
            return
        grader, iterator = self.report.method.reinforcement.grader, iter(rows)
        trial: list[Row] = []
        for row in iterator:
            if self._is_gradable(row, f"{param}[{row.line}]", grader) and len(trial) < TRIAL_ROWS:
                trial.append(row)
            yield row
        if param == "training_file":
            try_grader(grader, trial, self.report.problems, self.report.warn)

    def _is_gradable(self, row: Row, place: str, grader: Grader) -> bool:
        """Whether the grader can score some completion of this row; if not, why goes to the report."""
        problems = self.report.problems
        paths = grader.unresolved(row.item)
        for path in paths:
            where = f"{place}.{path.removeprefix('item.')}"
            problems.add(where, f"the grader's {{{{{path}}}}} does not resolve in this row")
        sentences = [] if paths else grader.problems(row.item)
        for sentence in sentences:
            problems.add(place, f"the grader can score nothing here: {sentence}")
        return not paths and not sentences


def _warn_of_unused(job: JobCreate, report: Report) -> None:
    if job.hyperparameters:
        message = "The top-level hyperparameters are deprecated and unused: method is given."
        report.warn("hyperparameters_unused", message)
    if job.resources.gpus > 1:
        report.warn("gpus_unused", "resources.gpus is noted, but a job runs on one GPU.")
