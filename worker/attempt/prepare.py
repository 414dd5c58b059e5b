"""Prepares a run directory: datasets, base model or parent, the newest checkpoint, config.json.

Missing files and unknown models are `Refused`; a damaged checkpoint is skipped, withdrawn and noted in the
job's history.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from grpo_engine.config.job import Method, ModelSource, ProbeSize, RunConfig, Runtime
from grpo_engine.contract.events import VALIDATION
from grpo_engine.contract.manifest import DamagedCheckpoint
from service.jobs.intake.checks.grader import method_with_paths
from service.jobs.model.methods import quantization_of, retention_of
from service.jobs.progress import publishing
from service.jobs.results.weights import WeightsMissing, missing, model_parts
from service.jobs.store.lineage import lineage_of
from service.jobs.store.machines import PYTHON_GRADERS, SANDBOX, UNSAFE, record_unsafe_run
from service.platform.catalog import NoModels
from service.platform.tables.core import Checkpoint, File, Job, Metric, Rollout
from service.settings import Settings
from worker.attempt.attempt import Attempt, Refused
from worker.attempt.fetch_weights import fetch_weights
from worker.launchers.base import CONFIG
from worker.launchers.run_files import DamagedObject

COMPARED_ROWS = 32
"""Maximum held-out completions on which a merged model is compared with the quantised one."""


def prepare(attempt: Attempt) -> None:
    """Fill the engine's run directory; paths are relative to it. Raises Refused, StorageError."""
    job, settings = attempt.job, attempt.worker.settings
    task = _training(attempt) if job.export is None else _merging(attempt, job.export)
    config = RunConfig(
        job_id=job.id,
        model=_model_source(attempt),
        runtime=_runtime(settings, attempt.num_ranks, attempt.num_samplers),
        created_at=job.created_at,
        first_sequence=job.engine_sequence + 1,
        **task,
    )
    attempt.files.write(CONFIG, config.model_dump_json(indent=2))


def _runtime(settings: Settings, num_ranks: int, num_samplers: int) -> Runtime:
    """The worker's runtime, in which several slots share this machine's cores."""
    num_threads = settings.runtime.num_threads
    if num_threads is None and settings.slots > 1 and settings.launcher == "local":
        num_threads = max(1, len(os.sched_getaffinity(0)) // settings.slots)
    host = settings.runtime.agent_host or (settings.serve_address if settings.launcher == "local" else None)
    own = {"ranks": num_ranks, "samplers": num_samplers, "num_threads": num_threads, "agent_host": host}
    return settings.runtime.model_copy(update=own)


def _training(attempt: Attempt) -> dict[str, Any]:
    """Fetch everything that training needs besides the model. Returns its fields of the configuration."""
    job = attempt.job
    _note_unsafe(attempt)
    _note_fewer_gpus(attempt)
    # before the checkpoint: if the storage is not mounted, this raises and no checkpoint is withdrawn
    training_file = _fetch_dataset(attempt, job.training_file, "train.jsonl")
    _fetch_checkpoint(attempt)
    validation_file = job.validation_file and _fetch_dataset(attempt, job.validation_file, "validation.jsonl")
    return {
        "seed": job.seed,
        "training_file": training_file,
        "validation_file": validation_file,
        "validation_split": job.validation_split,
        "retention_files": _fetch_retention(attempt),
        "method": _located_method(attempt),
        "probe": job.probe and ProbeSize(prompts=job.probe["prompts"]),
        "published_step": attempt.read(lambda session: _published_step(session, job.id)),
    }


def _merging(attempt: Attempt, export: dict[str, Any]) -> dict[str, Any]:
    """An export's fields of the configuration; for a quantised base, with held-out rows to compare."""
    fields: dict[str, Any] = {"method": attempt.method, "training_file": "", "export": "merged"}
    job = attempt.read(lambda session: session.get_one(Job, export["job_id"]))
    file_id = job.training_file if job.validation_split is not None else job.validation_file
    if quantization_of(attempt.method) is None or file_id is None:
        return fields
    try:
        path = _fetch_dataset(attempt, file_id, "validation.jsonl")
    except Refused as gone:
        attempt.warn(f"The merged model is not compared with the quantised one: {gone}.", {})
        return fields
    completions = attempt.read(lambda session: _last_completions(session, job.id, export["step"]))
    held_out: dict[str, Any] = {"validation_file": path}
    if job.validation_split is not None:
        held_out = {"training_file": path, "validation_split": job.validation_split, "seed": job.seed}
    return {**fields, **held_out, "held_out_completions": completions}


def _last_completions(session: Session, job_id: str, step: int) -> dict[int, list[int]]:
    """Row → tokens of its completion in the last evaluation up to this step, for a number of first rows."""
    mine = (Rollout.job_id == job_id, Rollout.split == VALIDATION, Rollout.step <= step)
    last = select(func.max(Rollout.step)).where(*mine).scalar_subquery()
    query = select(Rollout.data).where(*mine, Rollout.step == last).order_by(Rollout.position)
    groups = session.scalars(query.limit(COMPARED_ROWS))
    found = {group["row"]: group["completions"][0]["token_ids"] for group in groups}
    return {row: tokens for row, tokens in found.items() if tokens}


def _located_method(attempt: Attempt) -> Method:
    """The job's method with the paths of its reward models from the catalogue."""
    try:
        return method_with_paths(attempt.method, attempt.worker.catalog)
    except LookupError as unknown:
        gone = missing(str(unknown.args[0]))
        raise Refused("model_not_found", str(gone), gone.hint) from None


def _fetch_retention(attempt: Attempt) -> dict[str, str]:
    """Download the retention sets; returns name → path of the rows."""
    return {
        each.name: _fetch_dataset(attempt, each.file, f"retention-{number}.jsonl")
        for number, each in enumerate(retention_of(attempt.method))
    }


def _published_step(session: Session, job_id: str) -> int:
    steps = select(func.coalesce(func.max(Metric.step), 0)).where(Metric.job_id == job_id)
    return session.execute(steps).scalar_one()


def _fetch_dataset(attempt: Attempt, file_id: str, name: str) -> str:
    """Download a dataset to `name` in the run directory. Returns its path. Raises Refused, StorageError."""
    file = attempt.read(lambda session: session.get(File, file_id))
    hint = "Upload the file again and submit a new job."
    if file is None or file.deleted_at is not None:
        raise Refused("dataset_invalid", f"{file_id} was deleted before the job could run", hint)
    try:
        _fetch(attempt, attempt.files.download, file.storage_key, file.sha256, name)
    except DamagedObject as damage:
        raise Refused("dataset_invalid", f"{file_id} is damaged: {damage}", hint) from damage
    return f"./{name}"


def _fetch(attempt: Attempt, download: Callable[..., None], *arguments: Any) -> None:
    """Download to where the engine runs, waiting through storage outages. Raises as `download` does."""
    attempt.transfer(partial(download, *arguments), is_patient=True)


def _model_source(attempt: Attempt) -> ModelSource:
    """The job's model; the weights of an earlier job are downloaded. Raises Refused, StorageError."""
    worker, job = attempt.worker, attempt.job
    try:
        lineage = attempt.read(lambda session: lineage_of(session, job.tenant, job.model))
        parts = model_parts(lineage, worker.catalog)
        download = partial(_fetch, attempt, attempt.files.download_folder)
        return fetch_weights(parts, job.model, ".", download, is_here=worker.settings.launcher == "local")
    except WeightsMissing as gone:
        if worker.lacks_models():
            worker.blocked.set()
            raise NoModels(str(gone)) from gone
        raise Refused("model_not_found", str(gone), gone.hint) from gone


def _fetch_checkpoint(attempt: Attempt) -> None:
    """Restore the newest published checkpoint that verifies; withdraw damaged ones."""
    for checkpoint in attempt.read(lambda s: publishing.usable_checkpoints(s, attempt.job.id)):
        try:
            _restore(attempt, checkpoint)
        except DamagedCheckpoint as damage:
            withdraw = partial(publishing.withdraw_checkpoint, step=checkpoint.step, reason=str(damage))
            attempt.write(partial(withdraw, job_id=attempt.job.id, fence=attempt.job.fence))
            continue
        return
    if attempt.job.checkpoint_step:
        attempt.warn("No usable checkpoint is left: training restarts from the first step.", {})


def _note_unsafe(attempt: Attempt) -> None:
    """Record in the job's history that this worker runs its untrusted code without a sandbox."""
    required = set(attempt.job.required_capabilities.split())
    if UNSAFE in attempt.worker.engine_capabilities() and required & {SANDBOX, PYTHON_GRADERS}:
        attempt.write(lambda session: record_unsafe_run(session, attempt.job.id, attempt.job.fence))


def _note_fewer_gpus(attempt: Attempt) -> None:
    """Record that the attempt has fewer GPUs than the job requests, which `min_gpus` allows."""
    wanted = attempt.job.resources.get("gpus", 0)
    if attempt.num_ranks < wanted:
        attempt.warn(
            f"The attempt has {attempt.num_ranks} of the job's {wanted} GPUs.", {"gpus": attempt.num_ranks}
        )


def _restore(attempt: Attempt, checkpoint: Checkpoint) -> None:
    """Download, unpack and verify one checkpoint. Raises DamagedCheckpoint."""
    assert checkpoint.state_key is not None
    name = f"checkpoints/step-{checkpoint.step:08d}"
    stored = checkpoint.state_key, checkpoint.state_sha256
    _fetch(attempt, attempt.files.download_checkpoint, *stored, name, attempt.job.id, dict(checkpoint.shards))
