"""Datasets that a request names by task: their rows become ordinary files before the job is checked."""

import tempfile
from typing import Any

from service.files.schemas import UploadFields
from service.files.service import Files
from service.jobs.model.schemas import GENERATED_FILES, JobCreate
from service.platform.errors import Forbidden, InvalidRequest, Unprocessable
from service.platform.principal import Principal
from service.suites.child_process import generate
from service.suites.models import ReasoningGymDataset, SuiteError
from service.web.limits import ConcurrencyLimit

_limit = ConcurrencyLimit("datasets being generated", per_tenant=2, overall=4)
MISSING = "reasoning_gym_missing"


def with_generated_files(
    files: Files, principal: Principal, body: JobCreate
) -> tuple[JobCreate, list[dict[str, str]]]:
    """The request with ids of files for its named datasets, which are generated and stored, and warnings.

    Equal datasets are one file. Raises InvalidRequest naming the dataset's field, Unprocessable if the suite
    is missing here, Forbidden for a key that cannot store files, and what an upload raises.
    """
    warnings: list[dict[str, str]] = []
    stored: dict[str, str] = {}
    for name, file_field in GENERATED_FILES.items():
        if (dataset := getattr(body, name)) is None:
            continue
        if "write" not in principal.scopes:
            raise Forbidden(f"{name}: storing its rows needs a key with the scope write.", param=name)
        stored[file_field], report = _stored(files, principal, name, dataset)
        warnings += _warnings(name, report)
    return body.model_copy(update=stored), warnings


def _stored(
    files: Files, principal: Principal, name: str, dataset: ReasoningGymDataset
) -> tuple[str, dict[str, Any]]:
    """The id of the file with the dataset's rows, and the generator's report."""
    with _limit.slot(principal.tenant), tempfile.TemporaryFile() as rows:
        try:
            report = generate(dataset, rows, files.settings.max_upload_bytes)
        except SuiteError as error:
            where = f"{name}.{error.where}".rstrip(".")
            refused = Unprocessable if error.code == MISSING else InvalidRequest
            end = "" if str(error).endswith("?") else "."
            raise refused(f"{where}: {error}{end}", param=where, code=error.code) from None
        num_bytes = rows.seek(0, 2)
        file = files.upload(principal, rows, num_bytes, dataset.filename, UploadFields(purpose="fine-tune"))
    return file.id, report


def _warnings(name: str, report: dict[str, Any]) -> list[dict[str, str]]:
    """A warning if the suite's own answers do not all get the full score."""
    if not report["wrong"]:
        return []
    share, answer = f"{report['wrong']} of {report['checked']} checked rows", str(report["answer"])[:200]
    message = (
        f"{name}: in {share} the task's own answer does not score 1: the answer of row {report['line']}, "
        f"{answer!r}, scores {report['score']:g}. Completions of such rows may not reach 1 either."
    )
    return [{"code": "own_answer_not_full", "message": message}]
