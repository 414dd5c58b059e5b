"""The stored weights behind a model's name, and the jobs that produced them.

Boundary: rows. `results/weights.py` combines them with the catalogue.
"""

from dataclasses import dataclass, field
from typing import Literal

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from grpo_engine.config.job import TrainingFree
from service.jobs.model import names
from service.jobs.model.methods import lora_of, parsed_method
from service.jobs.model.names import MODEL_PREFIX
from service.jobs.model.states import ENDED
from service.jobs.store import repository
from service.platform.tables.core import Checkpoint, Job

MAX_ANCESTORS = 100

WeightsKind = Literal["adapter", "model", "experiences"]


@dataclass(frozen=True)
class StoredWeights:
    """A stored tar.gz: a job's result or one of its checkpoints. Equal if the content is equal."""

    name: str
    """The model's name."""
    kind: WeightsKind
    """`adapter`: in PEFT layout; `model`: whole weights; `experiences`: a training-free job's lessons."""
    step: int
    storage_key: str
    num_bytes: int
    sha256: str
    job: Job = field(compare=False, repr=False)
    created_at: float = field(compare=False)
    """Unix seconds."""
    checkpoint: str | None = field(default=None, compare=False)
    """Id of the checkpoint; None: the job's result."""

    @property
    def folder_name(self) -> str:
        """Name of the folder that `grpo download --extract` creates."""
        return self.checkpoint or self.job.id

    @property
    def filename(self) -> str:
        return f"{self.job.id}-step-{self.step}.tar.gz"


@dataclass(frozen=True)
class Lineage:
    """A model's own weights and those that it was trained from, newest first."""

    ancestors: tuple[StoredWeights, ...]
    root: str
    """Name of the oldest model: one of the catalogue, or a fine-tuned one whose weights were deleted."""

    @property
    def whole(self) -> StoredWeights | None:
        """The newest whole weights: older ones are not needed to load the model."""
        return next((each for each in self.ancestors if each.kind == "model"), None)

    @property
    def adapter(self) -> StoredWeights | None:
        """The newest weights if they are an adapter; it includes the training of older adapters."""
        newest = self.ancestors[0] if self.ancestors else None
        return newest if newest is not None and newest.kind == "adapter" else None


def lineage_of(session: Session, tenant: str, model: str) -> Lineage:
    """Follow a model from job to job. No ancestors: it is not a fine-tuned model of the tenant."""
    ancestors: list[StoredWeights] = []
    while len(ancestors) < MAX_ANCESTORS and (found := find_weights(session, tenant, model)) is not None:
        ancestors.append(found)
        model = found.job.model
    return Lineage(tuple(ancestors), model)


def find_weights(session: Session, tenant: str, name: str) -> StoredWeights | None:
    """The tenant's weights of a fine-tuned model's or a checkpoint's name; None if there are none."""
    if not name.startswith(MODEL_PREFIX):
        return None
    if (point := names.checkpoint_of(name)) is not None:
        return _checkpoint_weights(session, tenant, *point)
    job = repository.find_by_model(session, tenant, name)
    return None if job is None else result_of(session, job)


def result_of(session: Session, job: Job) -> StoredWeights | None:
    """The final weights of a job; None if it has not succeeded or they were deleted."""
    for artifact, file in repository.artifacts_of(session, job.tenant, [job.id]):
        if artifact.kind != "metrics":
            content = (file.storage_key, file.num_bytes, file.sha256)
            time = job.finished_at or job.created_at
            return StoredWeights(names.model_of(job), kind_of(job), artifact.step, *content, job, time)
    return None


def of_checkpoint(job: Job, point: Checkpoint) -> StoredWeights:
    """The weights of one of the job's checkpoints."""
    name = names.checkpoint_model(names.model_of(job), point.step)
    content = (point.adapter_key, point.adapter_bytes, point.adapter_sha256)
    return StoredWeights(name, kind_of(job), point.step, *content, job, point.created_at, point.id)


def _checkpoint_weights(session: Session, tenant: str, fine_tuned: str, step: int) -> StoredWeights | None:
    """A checkpoint's weights. Before its job succeeds, its name contains that of the future model."""
    job = repository.find_by_model(session, tenant, fine_tuned)
    job = job or repository.find_job(session, tenant, names.job_of(fine_tuned))
    if job is None or names.model_of(job) != fine_tuned:
        return None
    point = session.scalar(select(Checkpoint).where(Checkpoint.job_id == job.id, Checkpoint.step == step))
    return None if point is None else of_checkpoint(job, point)


def kind_of(job: Job) -> WeightsKind:
    """The kind of weights that a job produces."""
    method = parsed_method(job.method)
    if isinstance(method, TrainingFree):
        return "experiences"
    return "model" if lora_of(method) == "full" else "adapter"


def base_model_name(session: Session, tenant: str, model: str) -> str | None:
    """Catalogue name of the model at the root; None if an ancestor or its weights are missing."""
    root = lineage_of(session, tenant, model).root
    return None if root.startswith(MODEL_PREFIX) else root


def users_of(session: Session, job: Job) -> list[str]:
    """Ids of at most 5 jobs that start from its weights and are unfinished or have weights of their own."""
    model = names.model_of(job)
    of_checkpoint = Job.model.startswith(names.checkpoint_prefix(model), autoescape=True)
    has_checkpoint = select(Checkpoint.id).where(Checkpoint.job_id == Job.id).exists()
    is_alive = or_(Job.state.not_in(ENDED), Job.fine_tuned_model.is_not(None), has_checkpoint)
    query = select(Job.id).where(Job.tenant == job.tenant, or_(Job.model == model, of_checkpoint), is_alive)
    return list(session.scalars(query.where(Job.export.is_(None)).order_by(Job.created_at).limit(5)))
