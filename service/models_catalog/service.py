"""Models of the catalogue and the tenant's fine-tuned ones: list, read, delete.

Boundary: a catalogue model is the operator's and is never deleted here.
"""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from service.jobs.model import names
from service.jobs.model.states import JobState
from service.jobs.results.exports import cancel_export
from service.jobs.store import repository
from service.jobs.store.lineage import find_weights
from service.models_catalog.schemas import ModelDeleted, ModelRead
from service.platform import audit
from service.platform.catalog import CatalogEntry
from service.platform.db import lock_tenant
from service.platform.errors import Forbidden, InvalidRequest, NotFound
from service.platform.principal import Principal
from service.platform.tables.core import Job
from service.web.dependencies import CatalogDep, DatabaseDep, StorageDep

CATALOGUE = "catalogue"
WITHOUT_MODEL = {JobState.FAILED.value, JobState.CANCELLED.value}


@dataclass(frozen=True)
class Models:
    """The models of one deployment."""

    database: DatabaseDep
    storage: StorageDep
    catalog: CatalogDep

    def list(self, tenant: str) -> list[ModelRead]:
        """Catalogue first, by name; then the tenant's own, newest first."""
        base = [_of_entry(entry) for _, entry in sorted(self.catalog.entries().items())]
        with self.database.reading() as session:
            return base + [_of_job(job) for job in repository.fine_tuned(session, tenant)]

    def read(self, tenant: str, name: str) -> ModelRead:
        if entry := self.catalog.find(name):
            return _of_entry(entry)
        with self.database.reading() as session:
            if job := repository.find_by_model(session, tenant, name):
                return _of_job(job)
            point = find_weights(session, tenant, name)
        if point is None:
            raise _unknown(name)
        return ModelRead(id=name, created=int(point.created_at), owned_by=tenant)

    def delete(self, principal: Principal, name: str) -> ModelDeleted:
        """Delete a fine-tuned model: its name, every weight and every export of its job. Its metrics stay.

        The checkpoints of a job that failed or was cancelled go by the name that its model would have had.
        Raises Forbidden for a catalogue model, InvalidRequest while an unfinished job starts from it.
        """
        if self.catalog.find(name):
            message = f"{name} belongs to the catalogue; only its operator removes it."
            raise Forbidden(message, code="not_owner")
        with self.database.transaction() as session:
            lock_tenant(session, principal.tenant)
            job = repository.find_by_model(session, principal.tenant, name)
            job = job or _without_model(session, principal.tenant, name)
            if job is None:
                raise _unknown(name)
            if users := repository.descendants(session, principal.tenant, name):
                raise InvalidRequest(f"{name} is in use by {', '.join(users[:5])}.", code="model_in_use")
            for export in repository.exports_of(session, principal.tenant, job.id):
                cancel_export(session, export)
            keys = repository.forget_model(session, principal.tenant, job)
            audit.record(session, principal, "model.delete", job.id)
        for key in keys:
            self.storage.delete(key)
        return ModelDeleted(id=name)


def _without_model(session: Session, tenant: str, name: str) -> Job | None:
    """The job that ended without a model of this name and still has checkpoints."""
    job = repository.find_job(session, tenant, names.job_of(name))
    if job is None or job.state not in WITHOUT_MODEL or names.model_of(job) != name:
        return None
    return job if repository.checkpoints_of(session, tenant, job.id, limit=1) else None


def _of_entry(entry: CatalogEntry) -> ModelRead:
    return ModelRead(id=entry.name, created=entry.created, owned_by=CATALOGUE)


def _of_job(job: Job) -> ModelRead:
    return ModelRead(
        id=str(job.fine_tuned_model), created=int(job.finished_at or job.created_at), owned_by=job.tenant
    )


def _unknown(name: str) -> NotFound:
    return NotFound(f"There is no model {name}.", param="model", code="model_not_found")
