"""`GET …/jobs/{id}/manifest`: everything that determined a job's result, and the command to serve it."""

from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel

from grpo_engine.config.validation_split import ValidationSplit
from service.jobs.api.dependencies import JobId
from service.jobs.results.manifest import document
from service.jobs.results.provenance import facts_of
from service.jobs.results.vllm_command import serve_line
from service.jobs.store.repository import require_job
from service.web.auth import Reader
from service.web.dependencies import CatalogDep, DatabaseDep

router = APIRouter(prefix="/jobs/{job_id}")


class ManifestJob(BaseModel):
    """The identity of the job: the only difference between two equal jobs."""

    id: str
    created_at: int
    fine_tuned_model: str | None
    suffix: str | None
    metadata: dict[str, str] | None
    files: dict[str, str]
    """The request's field → the file's id."""
    serve: str
    """The command that serves the unpacked adapter in vLLM."""


class ManifestRead(BaseModel):
    """Everything that determined a job's result; `job` is not in the archive's manifest.json."""

    object: Literal["fine_tuning.job.manifest"] = "fine_tuning.job.manifest"
    job: ManifestJob
    format: Literal[1]
    model: dict[str, Any]
    """`name` in the job; `base`, `revision` and weights' `fingerprint` of the model that it comes from.

    `base_place`: "hub", "folder" (of the catalogue) or "job", the result of `base_job` at `base_checkpoint`.
    """
    data: dict[str, Any]
    """The request's field → `sha256` and `bytes` of the file."""
    graders: dict[str, Any]
    method: dict[str, Any]
    """The method in this API's own fields, with the values of headers hidden."""
    seed: int
    resources: dict[str, Any]
    validation_split: ValidationSplit | None = None
    """Share or number of held-out rows; together with the seed, it determines which rows are held out."""
    configuration_sha256: str
    engine: dict[str, Any]
    """`versions`, `device`, `dtype`, `sampler`, `computation`, largest `adapter_rank`, `base_format` (of
    quantised weights in the base's files) and `base_class` (which loads the base, if not
    AutoModelForCausalLM) of the run; empty before it has started."""
    service: dict[str, Any]
    evaluation: dict[str, Any]


@router.get("/manifest")
def retrieve_manifest(
    job_id: JobId, principal: Reader, database: DatabaseDep, catalog: CatalogDep
) -> ManifestRead:
    """Data and graders by SHA-256, configuration, seed, versions: everything needed to repeat the job."""
    with database.reading() as session:
        job = require_job(session, principal.tenant, job_id)
        facts = facts_of(session, job, catalog)
    manifest = document(facts)
    identity = ManifestJob(
        id=job.id,
        created_at=int(job.created_at),
        fine_tuned_model=job.fine_tuned_model,
        suffix=job.suffix,
        metadata=job.labels,
        files={name: file.id for name, file in facts.files.items()},
        serve=serve_line(manifest, name=job.id, path=f"./{job.id}"),
    )
    return ManifestRead(job=identity, **manifest)
