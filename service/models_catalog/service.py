"""Models of the catalogue and the tenant's fine-tuned ones: list, read, add, delete.

Boundary: a catalogue model is the operator's and is never deleted here. Models of the hub may be added.
"""

from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from service.hub.child_process import find_model
from service.hub.models import HubError, is_hub_id
from service.jobs.model import names
from service.jobs.model.names import base_of
from service.jobs.model.states import JobState
from service.jobs.results.exports import cancel_export
from service.jobs.store import repository
from service.jobs.store.lineage import find_weights, users_of
from service.models_catalog.facts import ModelFacts, facts_of_entry, worker_memories
from service.models_catalog.schemas import ModelDeleted, ModelRead
from service.platform import audit
from service.platform.catalog import CatalogEntry
from service.platform.db import lock_tenant
from service.platform.errors import Forbidden, InvalidRequest, NotFound
from service.platform.principal import Principal
from service.platform.tables.core import Job
from service.web.dependencies import CatalogDep, DatabaseDep, ServerLimitDep, SettingsDep, StorageDep

CATALOGUE = "catalogue"
WITHOUT_MODEL = {JobState.FAILED.value, JobState.CANCELLED.value}


@dataclass(frozen=True)
class Models:
    """The models of one deployment."""

    database: DatabaseDep
    storage: StorageDep
    catalog: CatalogDep
    settings: SettingsDep
    server_limit: ServerLimitDep

    def list(self, tenant: str) -> list[ModelRead]:
        """Catalogue first, by name; then the tenant's own, newest first."""
        entries = self.catalog.entries()
        with self.database.reading() as session:
            memories = worker_memories(session, self.settings)
            jobs = repository.fine_tuned(session, tenant)
            stored = repository.artifacts_of(session, tenant, [job.id for job in jobs])
        facts = {name: facts_of_entry(entry, memories, self.settings) for name, entry in entries.items()}
        sizes = {made.job_id: file.num_bytes for made, file in stored if made.kind != "metrics"}
        base = [_of_entry(entry, facts[name]) for name, entry in sorted(entries.items())]
        return base + [_of_job(job, facts.get(base_of(job.model)), sizes.get(job.id)) for job in jobs]

    def read(self, tenant: str, name: str) -> ModelRead:
        entry = self.catalog.find(name) or self.catalog.find(base_of(name))
        with self.database.reading() as session:
            memories = worker_memories(session, self.settings)
            job = repository.find_by_model(session, tenant, name)
            point = find_weights(session, tenant, name)
        facts = facts_of_entry(entry, memories, self.settings) if entry else None
        if entry is not None and facts is not None and entry.name == name:
            return _of_entry(entry, facts)
        if job is not None:
            return _of_job(job, facts, point.num_bytes if point else None)
        if point is None:
            raise _unknown(name)
        found = _of_job(point.job, facts, point.num_bytes)
        return found.model_copy(update={"id": name, "created": int(point.created_at)})

    def add(self, principal: Principal, hub_id: str) -> ModelRead:
        """Add a hub model, after a check of its size. Raises Forbidden, InvalidRequest, TooManyRequests."""
        if not self.settings.hub_models:
            how = f"On the service's machine, run: grpo models add {hub_id}"
            raise Forbidden(f"Only the operator adds models to this service. {how}", code="not_owner")
        if not is_hub_id(hub_id):
            message = f"{hub_id} is not an id of the hub, such as Qwen/Qwen3-0.6B."
            raise InvalidRequest(message, param="id", code="invalid_value")
        if self.catalog.find(hub_id) is None:
            try:
                with self.server_limit.slot(principal.tenant):
                    self.catalog.add_from_hub(hub_id, find_model(self.settings, hub_id))
            except HubError as error:
                raise InvalidRequest(error.text, param="id", code=error.code) from error
        with self.database.transaction() as session:
            audit.record(session, principal, "model.add", hub_id)
        return self.read(principal.tenant, hub_id)

    def delete(self, principal: Principal, name: str) -> ModelDeleted:
        """Delete a fine-tuned model: its name, and all weights and exports of its job. The metrics stay.

        The checkpoints of a job that failed or was cancelled are deleted under its model's intended name.
        Raises Forbidden for a catalogue model, InvalidRequest while a job that started from it needs it.
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
            if users := users_of(session, job):
                message = f"{name} is needed by {', '.join(users)}, which started from it. Delete them first."
                raise InvalidRequest(message, code="model_in_use")
            for export in repository.exports_of(session, principal.tenant, job.id):
                cancel_export(session, export)
            keys = repository.forget_model(session, principal.tenant, job)
            audit.record(session, principal, "model.delete", job.id)
        self.storage.discard(keys)
        return ModelDeleted(id=name)


def _without_model(session: Session, tenant: str, name: str) -> Job | None:
    """The job that would have produced a model of this name, ended without it and still has checkpoints."""
    job = repository.find_job(session, tenant, names.job_of(name))
    if job is None or job.state not in WITHOUT_MODEL or names.model_of(job) != name:
        return None
    return job if repository.checkpoints_of(session, tenant, job.id, limit=1) else None


def _of_entry(entry: CatalogEntry, facts: ModelFacts) -> ModelRead:
    return ModelRead(id=entry.name, created=entry.created, owned_by=CATALOGUE, **vars(facts))


def _of_job(job: Job, facts: ModelFacts | None, size_bytes: int | None) -> ModelRead:
    """A fine-tuned model. `facts`: those of its base model."""
    known = replace(facts or ModelFacts(), size_bytes=size_bytes)
    return ModelRead(
        id=names.model_of(job),
        created=int(job.finished_at or job.created_at),
        owned_by=job.tenant,
        parent=job.model,
        job_id=job.id,
        **vars(known),
    )


def _unknown(name: str) -> NotFound:
    return NotFound(f"There is no model {name}.", param="model", code="model_not_found")
