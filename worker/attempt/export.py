"""An export's attempt: what its engine needs, and its merged model as an artifact.

Boundary: the engine merges (`grpo_engine/run/export.py`); everything else about the attempt is a job's.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.orm import Session

from grpo_engine.config.job import RunConfig
from grpo_engine.contract.events import Exported
from grpo_engine.process.fault_points import fault_point
from service.jobs.model.states import JobState
from service.jobs.results.vllm_command import MERGED, holds_whole_model
from service.jobs.store import queue
from service.jobs.store.transitions import lock_held
from service.platform.tables.core import Artifact, Job
from worker.attempt.attempt import Attempt, Refused
from worker.attempt.prepare import model_source
from worker.attempt.publish import Stored, at_checkpoint, file_row, manifest_of, store_folder, texts_of


def prepare_export(attempt: Attempt) -> Path:
    """Fetch the weights. Returns the path of config.json. Raises Refused, StorageError."""
    job = attempt.job
    config = RunConfig(
        job_id=job.id,
        model=model_source(attempt),
        training_file="",
        method=attempt.method,
        export="merged",
        runtime=attempt.worker.settings.runtime.model_copy(update={"ranks": 1}),
        created_at=job.created_at,
        first_sequence=job.engine_sequence + 1,
    )
    path = attempt.folder / "config.json"
    path.write_text(config.model_dump_json(indent=2))
    return path


def publish_export(attempt: Attempt, event: Exported) -> None:
    """Pack and upload the merged model; then its row and the export's success, at once.

    Raises Refused if the job whose weights these are has gone, StorageError as `publish_results` does.
    """
    job = attempt.job
    if job.export is None:
        raise Refused("config_invalid", f"{job.id} is no export")
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
    file = file_row(attempt, filename, stored)
    session.add(file)
    session.add(Artifact(id=file.id, job_id=job.id, kind="merged", step=step, fence=job.fence))
    return True
