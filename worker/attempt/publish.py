"""Publishes the engine's folders: checkpoints while it trains, results or a merged model at its end.

The order is: pack, upload from all hosts, compare the sizes (and the digests of shards), write the row under
the fence, and only then delete older checkpoints. If the row is refused, nothing refers to the upload; its
key contains the fence, so it overwrites nothing. An engine keeps training while the storage is down: its
checkpoints are published with the next one, and its results wait.
"""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import structlog
from sqlalchemy.orm import Session

from grpo_engine.contract.events import CheckpointSaved, Exported, Finished
from grpo_engine.contract.manifest import DamagedCheckpoint
from grpo_engine.process.fault_points import fault_point
from service.jobs.model import names
from service.jobs.model.states import JobState
from service.jobs.progress import metrics, publishing
from service.jobs.results import manifest
from service.jobs.results.model_card import model_card
from service.jobs.results.provenance import facts_of
from service.jobs.results.vllm_command import MERGED, holds_whole_model
from service.jobs.store import queue
from service.jobs.store.transitions import lock_held
from service.platform.catalog import CatalogError
from service.platform.ids import new_id
from service.platform.storage import StorageError
from service.platform.tables.core import Artifact, Checkpoint, File, Job
from worker.attempt.attempt import Attempt
from worker.launchers.run_files import OUTBOX, Stored, VerifiedCheckpoint

logger = structlog.get_logger()
WEIGHTS = ("adapter", "model", "experiences")
"""Names of the weights' folders in a checkpoint, which are also kinds of artifacts."""


def publish_checkpoint(attempt: Attempt, event: CheckpointSaved) -> None:
    """Publish the engine's newest checkpoint, after earlier ones that could not be stored before.

    If the storage or the catalogue fails again, the job's history says so and training continues.
    """
    attempt.unpublished.append(event)
    while attempt.unpublished:
        try:
            _publish(attempt, attempt.unpublished[0])
        except (StorageError, CatalogError) as error:
            message = f"The checkpoint of step {event.step} was not stored: {error.public}."
            attempt.warn(message, {"step": event.step})
            return
        del attempt.unpublished[0]


def _publish(attempt: Attempt, event: CheckpointSaved) -> None:
    """Publish one checkpoint; skip it if the engine has removed it meanwhile. Raises StorageError."""
    job = attempt.job
    prefix = f"jobs/{job.id}/checkpoints/{event.step}-{job.fence}"
    try:
        verified = attempt.files.verify(event.path, job.id)
        state, shards = _store_state(attempt, event.path, prefix, verified.elsewhere)
        texts = _descriptions(attempt, job.id, step=event.step)
        weights_folder = f"{event.path}/{_kind_of(verified)}"
        weights = _store_folder(attempt, weights_folder, f"{prefix}/adapter.tar.gz", texts)
    except (DamagedCheckpoint, FileNotFoundError) as error:
        logger.warning("checkpoint not published", step=event.step, error=str(error))
        return
    fault_point("checkpoint.uploaded")
    attempt.write(
        lambda session: publishing.publish_checkpoint(
            session,
            Checkpoint(
                id=new_id("ftckpt", "_"),
                job_id=job.id,
                step=event.step,
                fence=job.fence,
                state_key=state.key,
                state_sha256=state.sha256,
                shards=shards,
                adapter_key=weights.key,
                adapter_sha256=weights.sha256,
                adapter_bytes=weights.num_bytes,
                metrics=dict(event.metrics),
            ),
        )
    )
    fault_point("checkpoint.published")
    _retire(attempt)


def _store_state(
    attempt: Attempt, name: str, prefix: str, elsewhere: Mapping[str, Any]
) -> tuple[Stored, dict[str, str]]:
    """Upload the checkpoint from the first rank's host and the shards from their hosts, all at the same time.

    `elsewhere`: the manifest's entries of the shards on the other hosts. Returns the archive, and the sha256
    of each shard by its key. Raises DamagedCheckpoint if a shard does not match the manifest.
    """
    archive = f"{prefix}/state.tar"
    entries = {f"{prefix}/{PurePosixPath(shard).name}": entry for shard, entry in elsewhere.items()}
    keys = {f"{OUTBOX}/state.tar": archive}
    keys |= {f"{name}/{shard}": key for shard, key in zip(elsewhere, entries, strict=True)}
    try:
        attempt.files.pack(name, "state.tar", {})
        uploaded = attempt.transfer(lambda: attempt.files.upload_all(keys))
    finally:
        attempt.files.empty_outbox()
    stored = {each.key: each for each in uploaded}
    for key, entry in entries.items():
        found = stored.get(key)
        if found is None or {"size": found.num_bytes, "sha256": found.sha256} != entry:
            what = "is missing on its host" if found is None else "does not match its manifest"
            raise DamagedCheckpoint(f"its shard {PurePosixPath(key).name} {what}")
    return stored[archive], {key: stored[key].sha256 for key in entries}


def publish_results(attempt: Attempt, event: Finished) -> None:
    """Store adapter (or model) and metrics table; their rows and the job's success are written together.

    Raises StorageError if the storage denies access, or fails until the worker or the job has to stop.
    """
    job = attempt.job
    kind = _kind_of(attempt.files.verify(str(PurePosixPath(event.path).parent), job.id))
    prefix = f"jobs/{job.id}/results/{job.fence}"
    texts = attempt.transfer(lambda: _descriptions(attempt, job.id), is_patient=True)
    weights = _store_folder(attempt, event.path, f"{prefix}/adapter.tar.gz", texts, is_patient=True)
    rows = attempt.read(lambda s: metrics.metric_rows(s, job.tenant, job.id))
    attempt.files.write("metrics.csv", metrics.to_csv(rows))
    curve = _upload(attempt, "metrics.csv", f"{prefix}/metrics.csv", is_patient=True)
    fault_point("results.uploaded")
    name = names.fine_tuned_model(job.model, job.tenant, job.suffix, job.id)

    def store_results(session: Session) -> bool:
        if not queue.finish(
            session,
            job.id,
            job.fence,
            JobState.SUCCEEDED,
            fine_tuned_model=name,
            trained_tokens=event.num_tokens,
        ):
            return False
        _add_artifact(session, attempt, "metrics", f"{job.id}-metrics.csv", curve, event.step)
        _add_artifact(session, attempt, kind, f"{job.id}-{kind}.tar.gz", weights, event.step)
        return True

    attempt.write(store_results)
    logger.info("job ended", state=JobState.SUCCEEDED.value, fine_tuned_model=name)
    fault_point("job.finished")


def publish_export(attempt: Attempt, event: Exported) -> None:
    """Upload the merged model; then store its row and the export's success in one transaction.

    Raises StorageError as `publish_results` does.
    """
    job = attempt.job
    export = job.export
    assert export is not None
    source, step = str(export["job_id"]), int(export["step"])
    job_now = attempt.read(lambda session: session.get_one(Job, source))
    is_final = job_now.state == JobState.SUCCEEDED.value and step == job_now.step
    difference = event.difference and event.difference.model_dump()
    texts = _descriptions(attempt, source, step=None if is_final else step, merged={"difference": difference})
    key = f"jobs/{source}/exports/{job.id}-{job.fence}.tar"
    stored = _store_folder(attempt, event.path, key, texts, is_patient=True)
    fault_point("export.uploaded")

    def store_result(session: Session) -> JobState | None:
        held = lock_held(session, job.id, job.fence)
        # if the export was cancelled meanwhile, its source may have been deleted
        is_wanted = held is None or held.state == JobState.RUNNING.value
        state = JobState.SUCCEEDED if is_wanted else JobState.CANCELLED
        if not queue.finish(session, job.id, job.fence, state):
            return None
        if is_wanted:
            session.get_one(Job, job.id).export = {**export, "difference": difference}
            _add_artifact(session, attempt, "merged", f"{source}-step-{step}-merged.tar", stored, step)
        return state

    state = attempt.write(store_result)
    if state is JobState.CANCELLED:
        attempt.worker.storage.discard([key])
    logger.info("export ended", of=source, step=step, state=state.value)


def _descriptions(
    attempt: Attempt, job_id: str, *, step: int | None = None, merged: manifest.Document | None = None
) -> dict[str, str]:
    """Model card and manifest of a job's weights, by file name.

    `step`: a checkpoint's step; `merged`: the manifest's entry about a merge. They contain no attempts, ids
    or times, so that a resumed job's archive equals that of an uninterrupted one. A checkpoint's evaluation
    is left out, because it may still be missing.
    """
    facts = attempt.read(lambda s: facts_of(s, s.get_one(Job, job_id), attempt.worker.catalog))
    document = manifest.document(facts)
    if step is not None:
        document |= {"evaluation": {}, "checkpoint": {"step": step}}
    if merged is not None and not holds_whole_model(document):
        document |= {"weights": MERGED, "merge": merged}
    return {"README.md": model_card(document), "manifest.json": manifest.text(document)}


def _add_artifact(
    session: Session, attempt: Attempt, kind: str, filename: str, stored: Stored, step: int
) -> None:
    """Add the rows of an uploaded result."""
    job, file_id = attempt.job, new_id("file")
    session.add(
        File(
            id=file_id,
            tenant=job.tenant,
            filename=filename,
            purpose="fine-tune-results",
            num_bytes=stored.num_bytes,
            sha256=stored.sha256,
            storage_key=stored.key,
        )
    )
    session.add(Artifact(id=file_id, job_id=job.id, kind=kind, step=step, fence=job.fence))


def _kind_of(checkpoint: VerifiedCheckpoint) -> str:
    """Which of WEIGHTS the checkpoint has."""
    folders = {name.split("/")[0] for name in checkpoint.here}
    return next(kind for kind in WEIGHTS if kind in folders)


def _store_folder(
    attempt: Attempt, name: str, key: str, texts: Mapping[str, str], *, is_patient: bool = False
) -> Stored:
    """Pack a folder and `texts`, and upload the archive, which is a tar.gz if its key ends so.

    Raises StorageError, and FileNotFoundError if the folder is gone.
    """
    archive = PurePosixPath(key).name
    try:
        attempt.files.pack(name, archive, texts)
        return _upload(attempt, f"{OUTBOX}/{archive}", key, is_patient=is_patient)
    finally:
        attempt.files.empty_outbox()


def _upload(attempt: Attempt, name: str, key: str, *, is_patient: bool = False) -> Stored:
    return attempt.transfer(lambda: attempt.files.upload(name, key), is_patient=is_patient)


def _retire(attempt: Attempt) -> None:
    job, keep = attempt.job, attempt.hyperparameters.max_checkpoints
    for key in attempt.write(lambda s: publishing.retire_checkpoints(s, job.id, job.fence, keep)):
        try:
            attempt.worker.storage.delete(key)
        except StorageError as error:
            logger.warning("retired checkpoint not deleted", key=key, error=str(error))
