"""Queries the facts of a job's manifest from its rows and the catalogue."""

from importlib.metadata import version
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.jobs.model.methods import parsed_method, retention_of
from service.jobs.progress.recording import STARTED
from service.jobs.results.manifest import DataFile, Facts
from service.jobs.results.weights import public_base
from service.jobs.store.lineage import kind_of, lineage_of
from service.platform.catalog import Catalog
from service.platform.tables.core import File, Job, JobEvent

ENGINE = (
    "versions",
    "device",
    "dtype",
    "sampler",
    "computation",
    "adapter_rank",
    "base_format",
    "base_class",
)


def facts_of(session: Session, job: Job, catalog: Catalog) -> Facts:
    """The facts recorded so far."""
    lineage, started = lineage_of(session, job.tenant, job.model), _first_start(session, job.id)
    return Facts(
        model=job.model,
        base=public_base(lineage, catalog, is_whole=kind_of(job) == "model"),
        method=job.method,
        seed=job.seed,
        validation_split=job.validation_split,
        resources=job.resources,
        files=_files(session, job),
        evaluation=job.evaluation,
        engine={name: started[name] for name in ENGINE if name in started},
        service_version=version("grpo-service"),
        fingerprint=started.get("base_fingerprint") or None,
    )


def _files(session: Session, job: Job) -> dict[str, DataFile]:
    """The datasets by field, including deleted ones, because they determined the result."""
    ids = {"training_file": job.training_file, "validation_file": job.validation_file}
    ids |= {f"retention.{kept.name}": kept.file for kept in retention_of(parsed_method(job.method))}
    rows = session.scalars(
        select(File).where(File.tenant == job.tenant, File.id.in_(filter(None, ids.values())))
    )
    found = {row.id: DataFile(row.id, row.num_bytes, row.sha256) for row in rows}
    return {name: found[file_id] for name, file_id in ids.items() if file_id in found}


def _first_start(session: Session, job_id: str) -> dict[str, Any]:
    """The engine's report about itself in the first attempt that started to train."""
    started = select(JobEvent.data).where(
        JobEvent.job_id == job_id, JobEvent.type == "message", JobEvent.message.startswith(STARTED)
    )
    return session.scalars(started.order_by(JobEvent.sequence).limit(1)).first() or {}
