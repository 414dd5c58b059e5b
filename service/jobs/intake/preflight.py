"""Everything that can be known to be wrong about a job before anything is queued.

Model, files, every row, every template, graders on trial completions, every row's length, rows that come
twice, what the deployment must offer. Boundary: reads storage, the operator's files and the model's folder,
writes nothing; what the job will cost is `estimate.py`'s.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from grpo_engine.config.job import Method, hyperparameters_of
from service.jobs.intake.checks.checked_files import CheckedFiles, Faultless, asked_of_rows
from service.jobs.intake.checks.duplicates import DuplicateCheck
from service.jobs.intake.checks.files import FileCheck
from service.jobs.intake.checks.grader import check_grader, check_speakers
from service.jobs.intake.checks.idle_options import warn_of_idle_options
from service.jobs.intake.checks.machine import check_capabilities, check_gpus
from service.jobs.intake.checks.method import check_method, check_tools
from service.jobs.intake.costs import PastJobs
from service.jobs.intake.estimate import Estimate, RowTokens, Subject, estimate
from service.jobs.intake.lineage import with_adapter_shape
from service.jobs.intake.model_size import ModelShape, UnknownShape, model_shape
from service.jobs.model.dataset import Problem, Problems
from service.jobs.model.methods import DatasetUse, datasets_of, graders_of, parsed_method, reads_rows
from service.jobs.model.names import base_of
from service.jobs.model.schemas import JobCreate
from service.jobs.store import repository
from service.jobs.store.machines import known_machines
from service.jobs.store.sink_packages import warn_of_missing
from service.platform.catalog import Catalog, CatalogEntry
from service.platform.db import Database
from service.platform.errors import InvalidRequest
from service.platform.storage import Storage
from service.platform.tables.core import File
from service.platform.token_counting import ModelText, ModelTextError, load_model_text
from service.settings import Settings

SHOWN_PROBLEMS = 10


@dataclass
class Report:
    """What preflight found; a job may be queued if `problems` is empty."""

    method: Method
    """Expanded: what a queued job will run with."""
    problems: Problems = field(default_factory=Problems)
    warnings: list[dict[str, str]] = field(default_factory=list)
    """`code` and `message` each, as in the job's own."""
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
    """A refused job: the first problem's place and code, and all problems beside them."""

    def __init__(self, problems: list[Problem]) -> None:
        first = problems[0]
        message = f"{len(problems)} problems: {in_short(problems)}" if len(problems) > 1 else first.message
        super().__init__(message, param=first.param, code=first.code)
        self.problems = [{"param": problem.param, "message": problem.message} for problem in problems]


def in_short(problems: list[Problem]) -> str:
    """The first ten kinds of problems; what is wrong with many rows alike is said once."""
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


@dataclass(frozen=True)
class Preflight:
    """The places that preflight looks at."""

    database: Database
    storage: Storage
    catalog: Catalog
    settings: Settings
    checked_files: CheckedFiles
    past_jobs: PastJobs

    def check(self, tenant: str, job: JobCreate) -> Report:
        """All problems of a request, up to a hundred. Raises nothing for what a user may have got wrong."""
        report = Report(job.method)
        _warn_of_unused(job, report)
        uses = datasets_of(job)
        with self.database.reading() as session:
            base = repository.base_model_name(session, tenant, job.model)
            files = repository.files_by_id(session, tenant, [use.file_id for use in uses])
            parent = repository.resolve_model(session, tenant, job.model)
            machines = known_machines(session, self.settings)
        earlier = None if parent is None else parsed_method(parent.job.method)
        report.method = with_adapter_shape(job.method, earlier, report.problems)
        has_validation = job.validation_file is not None
        check_method(job.method, has_validation, report.problems, report.warn)
        warn_of_idle_options(job.method, has_validation, report.warn)
        entry = self.catalog.find(base) if base else None
        if entry is None:
            reason = f"{job.model!r} is neither in the model catalogue nor one of your fine-tuned models"
            reason += " (see GET /v1/models)"
            report.problems.add("model", reason, code="model_not_found")
        text = self._model_text(entry, report) if entry else None
        report.shape = _shape(entry) if entry else None
        report.on_gpu = any(machine.gpus for machine in machines)
        check_tools(job.method, text, report.warn)
        check_capabilities(job.method, machines, report.problems, report.warn)
        check_gpus(job.resources.gpus, job.method, machines, report.problems, report.warn)
        for where, grader in graders_of(job.method):
            check_grader(where, grader, self.catalog, report.problems)
        check_speakers(job.method, report.problems)
        warn_of_missing([*(job.integrations or ()), *self.settings.integrations], machines, report.warn)
        found = self._read(self._file_check(report, entry, text), uses, files, report)
        counts = found.num_rows
        report.training_tokens = found.row_tokens.get("training_file")
        report.num_training_rows = counts["training_file"]
        report.num_validation_rows = counts.get("validation_file", 0)
        return report

    def estimate(self, tenant: str, job: JobCreate, report: Report, *, fresh: bool = False) -> Estimate:
        """What the checked job will probably cost. `fresh`: by all past jobs up to this moment."""
        subject = Subject(
            model=base_of(job.model),
            method=report.method,
            total_steps=report.total_steps,
            rows=report.training_tokens,
            shape=report.shape,
            on_gpu=report.on_gpu,
            runtime=self.settings.runtime,
        )
        return estimate(subject, self.past_jobs.of(self.database, tenant, fresh=fresh))

    def _read(
        self, check: FileCheck, uses: list[DatasetUse], files: dict[str, File], report: Report
    ) -> Faultless:
        """The rows of every file; read, or known from an earlier request."""
        asked = [(use.param, use.file_id) for use in uses]
        question = (tuple(asked), asked_of_rows(report.method), check.context_tokens)
        had_no_problem, num_warnings = not report.problems.found, len(report.warnings)
        known = self.checked_files.recall(question, check.text) if had_no_problem else None
        if known is not None and self._are_stored([files.get(use.file_id) for use in uses]):
            report.warnings += known.warnings
            return known
        counts = {use.param: check.num_rows(use, files.get(use.file_id)) for use in uses}
        found = Faultless(counts, check.row_tokens, report.warnings[num_warnings:], check.text)
        if not report.problems.found:
            self.checked_files.remember(question, found)
        return found

    def _are_stored(self, files: list[File | None]) -> bool:
        return all(file is not None and self.storage.exists(file.storage_key) for file in files)

    def _file_check(self, report: Report, entry: CatalogEntry | None, text: ModelText | None) -> FileCheck:
        limits = [text.context_tokens if text else None, entry.max_context_tokens if entry else None]
        return FileCheck(
            storage=self.storage,
            settings=self.settings,
            method=report.method,
            text=text if reads_rows(report.method) else None,
            context_tokens=min((limit for limit in limits if limit is not None), default=None),
            problems=report.problems,
            warn=report.warn,
            duplicates=DuplicateCheck(report.warn),
        )

    def _model_text(self, entry: CatalogEntry, report: Report) -> ModelText | None:
        if entry.folder is None:
            reason = f"{entry.path} is not on this machine"
            report.warn("lengths_unchecked", f"Row lengths were not checked: {reason}.")
            return None
        try:
            return load_model_text(entry.folder)
        except ModelTextError as error:
            report.warn("lengths_unchecked", f"Row lengths were not checked: {error}.")
            return None


def _shape(entry: CatalogEntry) -> ModelShape | None:
    """None if it is unknown; the estimate then says so."""
    if entry.folder is None:
        return None
    try:
        return model_shape(entry.folder)
    except UnknownShape:
        return None


def _warn_of_unused(job: JobCreate, report: Report) -> None:
    if job.hyperparameters:
        message = "The top-level hyperparameters are deprecated, and ignored because method is set."
        report.warn("hyperparameters_unused", message)
