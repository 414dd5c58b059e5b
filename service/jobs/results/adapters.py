"""Which weights a download means: the final result, the best evaluated one, or a checkpoint's.

Boundary: chooses rows; `service.web.downloads` sends their bytes after the session has ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sqlalchemy.orm import Session

from service.jobs.model.states import TERMINAL, JobState
from service.jobs.store import repository
from service.platform.errors import NotFound
from service.platform.tables.core import Artifact, Checkpoint, File, Job

Which = Literal["final", "best"]


@dataclass(frozen=True)
class Weights:
    """A stored tar.gz: an adapter in PEFT layout, or the whole model of a `lora: full` job."""

    job_id: str
    step: int
    storage_key: str
    num_bytes: int
    sha256: str

    @property
    def filename(self) -> str:
        return f"{self.job_id}-step-{self.step}.tar.gz"


def chosen_weights(session: Session, tenant: str, job: Job, which: Which) -> Weights:
    """The job's final weights (the newest checkpoint's before there are any), or its best ones.

    Raises NotFound with code `no_adapter_yet`, `adapter_deleted` or `no_best_checkpoint` and a hint.
    """
    checkpoints = repository.checkpoints_of(session, tenant, job.id)
    pairs = repository.artifacts_of(session, tenant, [job.id])
    final = next((_of_artifact(*pair) for pair in pairs if pair[0].kind != "metrics"), None)
    available = ([final] if final else []) + [of_checkpoint(point) for point in checkpoints]
    if not available:
        raise _nothing_there(job)
    return available[0] if which == "final" else _best(job, available)


def of_checkpoint(checkpoint: Checkpoint) -> Weights:
    return Weights(
        checkpoint.job_id,
        checkpoint.step,
        checkpoint.adapter_key,
        checkpoint.adapter_bytes,
        checkpoint.adapter_sha256,
    )


def _of_artifact(artifact: Artifact, file: File) -> Weights:
    return Weights(artifact.job_id, artifact.step, file.storage_key, file.num_bytes, file.sha256)


def _best(job: Job, available: list[Weights]) -> Weights:
    best = job.evaluation.get("best")
    if not best:
        message = (
            f"{job.id} has no evaluation to choose by: give it a validation_file, or take checkpoint=final"
        )
        raise NotFound(message, param="checkpoint", code="no_best_checkpoint")
    for weights in available:
        if weights.step == best.get("step"):
            return weights
    if best.get("step") == 0:
        message = f"{job.id} was best before training: no evaluated step did better on the held-out rows"
    else:
        message = f"{job.id} was best at step {best.get('step')}, of which no checkpoint is kept"
    raise NotFound(f"{message}: take checkpoint=final", param="checkpoint", code="no_best_checkpoint")


def _nothing_there(job: Job) -> NotFound:
    if job.state == JobState.SUCCEEDED.value:
        return NotFound(f"the weights of {job.id} were deleted", code="adapter_deleted")
    if JobState(job.state) in TERMINAL:
        reason = f"{job.id} ended as {job.state} before its first checkpoint"
    else:
        reason = f"{job.id} has no checkpoint yet: the first comes after checkpoint_interval steps"
    return NotFound(reason, code="no_adapter_yet")
