"""Finds the server of a model, or requests that a worker loads it; checks its owner and live workers.

Boundary: rows; `answer.py` sends the request to the server.
"""

import hashlib
from dataclasses import dataclass

from sqlalchemy.orm import Session

from service.jobs.results.weights import WeightsMissing, model_parts
from service.jobs.store.lineage import lineage_of
from service.platform.catalog import Catalog, CatalogEntry
from service.platform.db import Database
from service.platform.errors import InvalidRequest, NotFound, Unavailable
from service.serving import repository
from service.serving.repository import ServerState

TRAINING_SECONDS = 60
"""`Retry-After` while the GPUs belong to jobs."""
NO_WORKER = "No worker answers requests now. Start one: `grpo up`, or `python -m worker.serving.chat`."
TRAINING = "The workers are training; on GPUs they answer only while no job runs. Try again later."


@dataclass(frozen=True)
class WantedModel:
    """A model of a tenant, and the weights that it is loaded from."""

    database: Database
    tenant: str
    name: str
    key: str
    """Digest of the weights."""

    def server(self) -> ServerState | None:
        """Its server as the database has it now."""
        with self.database.reading() as session:
            return repository.find(session, self.key)

    def want(self, *, is_new: bool) -> None:
        """Request that a worker loads it. Raises Unavailable if none would."""
        with self.database.transaction() as session:
            _check_workers(repository.live_workers(session))
            repository.want(session, self.key, self.tenant, self.name, is_new=is_new)


def wanted_model(database: Database, catalog: Catalog, tenant: str, name: str) -> WantedModel:
    """Raises NotFound for a model that is not the tenant's, InvalidRequest for one without weights."""
    bases = catalog.names()
    with database.reading() as session:
        return WantedModel(database, tenant, name, _key(session, catalog, tenant, name, bases))


def _key(session: Session, catalog: Catalog, tenant: str, name: str, bases: list[str]) -> str:
    lineage = lineage_of(session, tenant, name)
    if name not in bases and not lineage.ancestors:
        raise NotFound(f"There is no model {name}.", param="model", code="model_not_found")
    if lineage.ancestors and lineage.ancestors[0].kind == "experiences":
        reason = f"{name} is the result of a training-free job and has no weights. Use its base model."
        raise InvalidRequest(reason, param="model", code="model_without_weights")
    try:
        parts = model_parts(lineage, catalog)
    except WeightsMissing as error:
        reason = f"The base model of {name} is no longer in the catalogue."
        raise NotFound(reason, param="model", code="model_not_found") from error
    base = parts.base
    # the folder of the deployment differs between hosts
    shown = base.model_dump_json(exclude={"home"}) if isinstance(base, CatalogEntry) else repr(base)
    return hashlib.sha256(repr((parts.name, shown, parts.adapter)).encode()).hexdigest()


def _check_workers(are_training: list[bool]) -> None:
    """Raise Unavailable if no worker answers, with a header against retries: that does not change soon."""
    if not are_training:
        raise Unavailable(NO_WORKER, code="no_chat_worker", headers={"x-should-retry": "false"})
    if all(are_training):
        headers = {"Retry-After": str(TRAINING_SECONDS), "x-should-retry": "false"}
        raise Unavailable(TRAINING, code="workers_training", headers=headers)
