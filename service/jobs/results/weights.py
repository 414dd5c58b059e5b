"""Chooses the weights of a download, an export or a loaded model. `store/lineage.py` follows their origin."""

from dataclasses import dataclass
from typing import Literal

from sqlalchemy.orm import Session

from service.jobs.model.states import TERMINAL, JobState
from service.jobs.results.manifest import PublicBase
from service.jobs.store import repository
from service.jobs.store.lineage import Lineage, StoredWeights, of_checkpoint, result_of
from service.platform.catalog import Catalog, CatalogEntry
from service.platform.errors import NotFound
from service.platform.tables.core import Job

Which = Literal["final", "best"]


class WeightsMissing(Exception):
    """The model cannot be loaded; the message gives the reason, `hint` what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True)
class ModelParts:
    """Everything that a model is loaded from; equal if the model is the same."""

    name: str
    """Name of the base model, as a trained adapter gives it."""
    base: CatalogEntry | StoredWeights
    adapter: StoredWeights | None


def model_parts(lineage: Lineage, catalog: Catalog) -> ModelParts:
    """Base and adapter of a model. Raises WeightsMissing."""
    newest = lineage.ancestors[0] if lineage.ancestors else None
    if newest is not None and newest.kind == "experiences":
        reason = f"{newest.name} is the result of a training-free job and has no weights"
        raise WeightsMissing(reason, "Name the model that it was made with.")
    base = lineage.whole or catalog.find(lineage.root)
    if base is None:
        raise missing(lineage.root)
    return ModelParts(public_base(lineage, catalog).name, base, lineage.adapter)


def public_base(lineage: Lineage, catalog: Catalog, *, is_whole: bool = False) -> PublicBase:
    """The base of an adapter with this lineage or, if the weights are whole, the model at its root."""
    if lineage.whole is not None and not is_whole:
        whole = lineage.whole
        return PublicBase(whole.folder_name, "job", job=whole.job.id, checkpoint=whole.checkpoint)
    entry = catalog.find(lineage.root)
    if entry is None or not entry.is_from_hub:
        return PublicBase(lineage.root, "folder", entry.revision if entry else None)
    return PublicBase(entry.path, "hub", entry.revision)


def missing(name: str) -> WeightsMissing:
    hint = "List the models with GET /v1/models; a deleted one cannot be used."
    return WeightsMissing(f"the model {name} is not in the catalogue any more", hint)


def requested_weights(
    session: Session, tenant: str, job: Job, which: Which, checkpoint: str | None
) -> StoredWeights:
    """The weights of the checkpoint if one is given, otherwise those of the job.

    `checkpoint`: an id or, like `which`, the word "final" or "best". Raises NotFound.
    """
    if checkpoint is None:
        return chosen_weights(session, tenant, job, which, param="which")
    if checkpoint in ("final", "best"):
        return chosen_weights(session, tenant, job, checkpoint)
    return weights_at(session, tenant, checkpoint, job.id, param="checkpoint")


def weights_at(
    session: Session,
    tenant: str,
    checkpoint_id: str,
    job_id: str | None,
    *,
    param: str = "checkpoint_id",
) -> StoredWeights:
    """A checkpoint's weights. Raises NotFound if it does not belong to the tenant and the job."""
    found = repository.find_checkpoint(session, tenant, checkpoint_id)
    if found is None or job_id not in (None, found.job_id):
        message = f"There is no checkpoint {checkpoint_id}."
        raise NotFound(message, param=param, code="checkpoint_not_found")
    return of_checkpoint(repository.require_job(session, tenant, found.job_id), found)


def chosen_weights(
    session: Session, tenant: str, job: Job, which: str, *, param: str = "checkpoint"
) -> StoredWeights:
    """The job's best weights or its final ones, which are its newest checkpoint's if it has not ended.

    `param`: the request's field that chose them. Raises NotFound with code `no_adapter_yet`,
    `adapter_deleted` or `no_best_checkpoint` and a hint.
    """
    final = result_of(session, job)
    points = [of_checkpoint(job, point) for point in repository.checkpoints_of(session, tenant, job.id)]
    available = [final, *points] if final else points
    if not available:
        raise _without_weights(job)
    return available[0] if which == "final" else _best(job, available, param)


def _best(job: Job, available: list[StoredWeights], param: str) -> StoredWeights:
    step = (job.evaluation.get("best") or {}).get("step")
    for weights in available:
        if weights.step == step:
            return weights
    if step is None:
        message = f"{job.id} has no evaluation: it has no held-out rows, or is not evaluated yet"
    elif step == 0:
        message = f"{job.id} was best before training: no evaluated step did better on the held-out rows"
    else:
        message = f"{job.id} was best at step {step}, whose checkpoint was not kept"
    raise NotFound(f"{message}. Use {param}=final.", param=param, code="no_best_checkpoint")


def _without_weights(job: Job) -> NotFound:
    if job.state == JobState.SUCCEEDED.value:
        return NotFound(f"The weights of {job.id} were deleted.", code="adapter_deleted")
    if JobState(job.state) in TERMINAL:
        reason = f"{job.id} ended as {job.state} before its first checkpoint."
    else:
        reason = f"{job.id} has no checkpoint yet: the first comes after checkpoint_interval steps."
    return NotFound(reason, code="no_adapter_yet")
