"""Publishes the merged model of an export, which the engine has made (`grpo_engine/run/export.py`)."""

from __future__ import annotations

from sqlalchemy.orm import Session

from grpo_engine.contract.events import Exported
from grpo_engine.process.fault_points import fault_point
from service.jobs.model.states import JobState
from service.jobs.results.vllm_command import MERGED, holds_whole_model
from service.jobs.store import queue
from service.jobs.store.transitions import lock_held
from service.platform.tables.core import Job
from worker.attempt.attempt import Attempt, Refused
from worker.attempt.publish import Stored, add_artifact, at_checkpoint, manifest_of, store_folder, texts_of


def publish_export(attempt: Attempt, event: Exported) -> None:
    """Upload the merged model; then store its row and the export's success in one transaction.

    Raises StorageError as `publish_results` does.
    """
    job = attempt.job
    if job.export is None:
        raise Refused("config_invalid", f"{job.id} is not an export")
    source, step = str(job.export["job_id"]), int(job.export["step"])
    texts = _beside_merged(attempt, source, step)
    key = f"jobs/{source}/exports/{job.id}-{job.fence}.tar"
    stored = store_folder(attempt, attempt.folder / event.path, key, texts, is_patient=True)
    fault_point("export.uploaded")
    attempt.write(lambda session: _finish(session, attempt, stored, f"{source}-step-{step}-merged.tar", step))


def _beside_merged(attempt: Attempt, job_id: str, step: int) -> dict[str, str]:
    """Model card and manifest of the merged weights that the job had after `step` steps."""
    job = attempt.read(lambda session: session.get_one(Job, job_id))
    document = manifest_of(attempt, job_id)
    if job.state != JobState.SUCCEEDED.value or step != job.step:
        document = at_checkpoint(document, step)
    return texts_of(document if holds_whole_model(document) else document | {"weights": MERGED})


def _finish(session: Session, attempt: Attempt, stored: Stored, filename: str, step: int) -> bool:
    """A cancelled export publishes nothing: its weights may have been deleted. False: the fence is stale."""
    job = attempt.job
    held = lock_held(session, job.id, job.fence)
    if held is not None and held.state != JobState.RUNNING.value:
        return queue.finish(session, job.id, job.fence, JobState.CANCELLED)
    if not queue.finish(session, job.id, job.fence, JobState.SUCCEEDED):
        return False
    add_artifact(session, attempt, "merged", filename, stored, step)
    return True
