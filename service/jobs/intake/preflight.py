"""Checks everything about a job that can be checked before it is queued, and estimates its cost.

Model, files, every row, every template, graders on trial completions, the length of every row, repeated
rows, requirements on the deployment. Boundary: reads storage, the operator's files and the model's folder;
writes nothing but the description of a hub's model.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass

from grpo_engine.config.job import Method
from grpo_engine.config.tools import McpTool
from service.files.service import Files
from service.hub.child_process import find_model
from service.hub.models import HubError, is_hub_id
from service.jobs.intake.adapter_shape import with_adapter_shape
from service.jobs.intake.checks.duplicates import DuplicateCheck
from service.jobs.intake.checks.environments import Resets, check_environments
from service.jobs.intake.checks.files import CheckedRows, FileCheck
from service.jobs.intake.checks.grader import check_endpoint_models, check_grader
from service.jobs.intake.checks.machine import check_capabilities, check_gpus, warn_of_missing_sinks
from service.jobs.intake.checks.mcp import list_mcp_tools
from service.jobs.intake.checks.method import check_method, check_quantization, check_tools
from service.jobs.intake.checks.model import check_model
from service.jobs.intake.checks.unused_options import warn_of_unused_options
from service.jobs.intake.costs import PastRun, read_past
from service.jobs.intake.estimate import estimate
from service.jobs.intake.recent_results import RecentResults
from service.jobs.intake.report import Report
from service.jobs.intake.subject import Subject
from service.jobs.model.methods import (
    DatasetUse,
    datasets_of,
    environments_of,
    graders_of,
    parsed_method,
    reads_rows,
    tools_of,
)
from service.jobs.model.names import base_of
from service.jobs.model.schemas import JobCreate
from service.jobs.model.validation import Estimate
from service.jobs.store import repository
from service.jobs.store.lineage import lineage_of
from service.jobs.store.machines import Machine, known_machines
from service.platform.catalog import Catalog, CatalogEntry
from service.platform.db import Database
from service.platform.storage import Storage
from service.platform.tables.core import File
from service.platform.token_counting import ModelText
from service.settings import Settings
from service.web.limits import ConcurrencyLimit

FEWEST_TO_HOLD_OUT = 40
"""Rows of a training file; the browser's form holds out rows from this number on."""


@dataclass(frozen=True)
class Preflight:
    """The checks of one deployment."""

    database: Database
    storage: Storage
    catalog: Catalog
    settings: Settings
    checked_files: RecentResults[CheckedRows]
    """Rows of earlier requests. Only files without problems are kept, so refusals always read the rows."""
    past_jobs: RecentResults[list[PastRun]]
    server_limit: ConcurrencyLimit
    """Limit of concurrent requests that wait for other servers, each in one of the process's threads."""

    @property
    def files(self) -> Files:
        """The deployment's files."""
        return Files(self.database, self.storage, self.settings, self.catalog)

    def check(self, tenant: str, job: JobCreate) -> Report:
        """All problems of a request. Raises TooManyRequests at the limit of `server_limit`."""
        waits = _names_servers(job.method) or self._is_on_hub(job.model)
        with self.server_limit.slot(tenant) if waits else nullcontext():
            return self._checked(tenant, job)

    def _checked(self, tenant: str, job: JobCreate) -> Report:
        report, uses = Report(job.method), datasets_of(job)
        with self.database.reading() as session:
            lineage = lineage_of(session, tenant, job.model)
            files = repository.files_by_id(session, tenant, [use.file_id for use in uses])
            machines = known_machines(session, self.settings)
        parent = parsed_method(lineage.ancestors[0].job.method) if lineage.ancestors else None
        report.method = with_adapter_shape(job.method, parent, report.problems)
        report.on_gpu = any(machine.gpus for machine in machines)
        _check_settings(job, report)
        entry = self.catalog.find(lineage.root) or self._hub_entry(lineage.root, report)
        text = check_model(report, job, entry)
        report.tools = tools_of(report.method)
        list_mcp_tools(report, text)
        if text is not None:
            check_tools(report, text)
        check_quantization(report, parent)
        self._check_deployment(job, machines, report)
        resets = self._check_rows(uses, files, self._file_check(job, report, entry, text))
        check_environments(report, resets)
        return report

    def _is_on_hub(self, name: str) -> bool:
        """Whether the model must be looked up on the hub."""
        return self.settings.hub_models and is_hub_id(name) and self.catalog.find(name) is None

    def _hub_entry(self, name: str, report: Report) -> CatalogEntry | None:
        """The entry for a hub model that the job adds to the catalogue, if the operator allows that."""
        if not self._is_on_hub(name):
            return None
        try:
            report.hub_model = find_model(self.settings, name)
        except HubError as error:
            report.problems.add("model", error.text, code=error.code)
            return None
        return self.catalog.place_of(name, report.hub_model)

    def _check_deployment(self, job: JobCreate, machines: list[Machine], report: Report) -> None:
        """Machines, endpoints, reward models and packages that the job needs."""
        check_capabilities(report, machines)
        check_gpus(report, job.resources, machines)
        for where, grader in graders_of(job.method):
            check_grader(where, grader, self.catalog, report.problems)
        check_endpoint_models(report)
        sinks = [*(job.integrations or ()), *self.settings.integrations]
        warn_of_missing_sinks(report, [sink.type for sink in sinks], machines)

    def _check_rows(self, uses: list[DatasetUse], stored: Mapping[str, File], check: FileCheck) -> Resets:
        """Check every row of every file, or reuse the result of an earlier request. Returns rows' resets."""
        report, files = check.report, [stored.get(use.file_id) for use in uses]
        key, num_warnings = check.key(uses), len(report.warnings)
        found = None if report.problems.found else self.checked_files.get(key)
        if found and all(file is not None and self.storage.exists(file.storage_key) for file in files):
            report.warnings += found.warnings
        else:
            counts = {use.name: check.num_rows(use, file) for use, file in zip(uses, files, strict=True)}
            warnings = report.warnings[num_warnings:]
            found = CheckedRows(counts, check.row_tokens, check.resets, warnings, check.text)
            if not report.problems.found:
                self.checked_files.put(key, found)
        report.training_tokens = found.row_tokens.get("training_file")
        report.num_training_rows = found.num_rows["training_file"]
        held_out = ("validation_file", "validation_split")
        report.num_validation_rows = sum(found.num_rows.get(name, 0) for name in held_out)
        _warn_of_no_held_out_rows(report)
        return found.resets

    def _file_check(
        self, job: JobCreate, report: Report, entry: CatalogEntry | None, text: ModelText | None
    ) -> FileCheck:
        limits = [text.context_tokens if text else None, entry.max_context_tokens if entry else None]
        return FileCheck(
            storage=self.storage,
            settings=self.settings,
            report=report,
            text=text if reads_rows(report.method) else None,
            context_tokens=min((limit for limit in limits if limit is not None), default=None),
            duplicates=DuplicateCheck(report),
            validation_split=job.validation_split,
            seed=job.seed or 0,
        )

    def estimate(self, tenant: str, job: JobCreate, report: Report, *, fresh: bool = False) -> Estimate:
        """The probable cost of the checked job. `fresh`: includes jobs that finished in the last minute."""
        past = None if fresh else self.past_jobs.get(tenant)
        if past is None:
            with self.database.reading() as session:
                past = read_past(session, tenant)
            self.past_jobs.put(tenant, past)
        runtime = self.settings.runtime
        subject = Subject(
            model=base_of(job.model),
            method=report.method,
            total_steps=report.total_steps,
            rows=report.training_tokens,
            shape=report.shape,
            on_gpu=report.on_gpu,
            runtime=runtime.model_copy(update={"ranks": job.resources.gpus or runtime.ranks}),
        )
        return estimate(subject, past)


def _names_servers(method: Method) -> bool:
    return bool(environments_of(method)) or any(isinstance(tool, McpTool) for tool in tools_of(method))


def _warn_of_no_held_out_rows(report: Report) -> None:
    """A warning if the training file has enough rows to hold some out, and the job holds out none."""
    if report.num_validation_rows or report.num_training_rows < FEWEST_TO_HOLD_OUT:
        return
    message = (
        "No held-out rows: there will be no verdict on unseen rows. validation_split: 0.1 holds out a tenth."
    )
    report.warn("no_held_out_rows", message)


def _check_settings(job: JobCreate, report: Report) -> None:
    """Checks that depend on neither the deployment nor the rows."""
    check_method(report, job.has_held_out_rows)
    warn_of_unused_options(report, job.has_held_out_rows)
    if job.hyperparameters:
        message = "The top-level hyperparameters are deprecated, and ignored because method is set."
        report.warn("hyperparameters_unused", message)
