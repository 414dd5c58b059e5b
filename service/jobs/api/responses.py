"""Rows → responses, with the few queries that all jobs of a page share."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.orm import Session

from service.jobs.intake import costs
from service.jobs.model import names
from service.jobs.model.openai_terms import in_openai_terms
from service.jobs.model.schemas import (
    ArtifactRead,
    CheckpointRead,
    ErrorRead,
    EvalRead,
    EventRead,
    FailureRead,
    JobRead,
    ProgressRead,
    QueueRead,
)
from service.jobs.model.states import HELD, PUBLIC, JobState
from service.jobs.progress.evaluations import in_openai_names, with_decoding
from service.jobs.progress.metrics import EVALUATION, newest_rewards
from service.jobs.store import queue_health, repository
from service.platform.clock import read_clock
from service.platform.tables.core import Artifact, Checkpoint, File, Job, JobEvent
from service.settings import Settings

_RESULT_ORDER = ("metrics", "adapter", "model", "experiences")


def read_jobs(session: Session, tenant: str, jobs: Sequence[Job], settings: Settings) -> list[JobRead]:
    """The responses, in the order of `jobs`."""
    if not jobs:
        return []
    positions = queue_health.queue_places(session, jobs)
    max_running = settings.max_running_jobs
    is_full = bool(positions) and queue_health.is_at_running_limit(session, tenant, max_running)
    no_worker = _pools_without_worker(session, jobs, settings)
    results: dict[str, list[tuple[Artifact, File]]] = {job.id: [] for job in jobs}
    started = [job.id for job in jobs if job.attempt or job.state != JobState.QUEUED.value]
    for artifact, file in repository.artifacts_of(session, tenant, started) if started else ():
        results[artifact.job_id].append((artifact, file))
    best = repository.best_checkpoints(session, tenant, jobs)
    rewards = newest_rewards(session, jobs)
    depends_on_time = any(JobState(job.state) in HELD or job.not_before > 0 for job in jobs)
    now = read_clock(session) if depends_on_time else 0.0
    limit = max_running if is_full else None
    return [
        _job_read(
            job,
            queue=_queue(job, positions.get(job.id), no_worker.get(job.pool), limit, now),
            results=results[job.id],
            now=now,
            best=best.get(job.id),
            reward=rewards.get(job.id),
        )
        for job in jobs
    ]


def _job_read(
    job: Job,
    *,
    queue: QueueRead,
    results: list[tuple[Artifact, File]],
    now: float,
    best: str | None,
    reward: float | None,
) -> JobRead:
    """The whole response. `now`: the database's clock, Unix seconds. `best`: id of the best checkpoint.
    `reward`: mean reward of the newest step.
    """
    state = JobState(job.state)
    seconds = _seconds_remaining(job)
    ordered = sorted(results, key=lambda pair: _RESULT_ORDER.index(pair[0].kind))
    failure = FailureRead.model_validate(job.failure) if state is JobState.FAILED and job.failure else None
    return JobRead(
        id=job.id,
        created_at=int(job.created_at),
        started_at=_seconds(job.started_at),
        finished_at=_seconds(job.finished_at),
        estimated_finish=None if seconds is None else int(now + seconds),
        model=job.model,
        fine_tuned_model=job.fine_tuned_model,
        organization_id=job.tenant,
        status=PUBLIC[state].value,
        training_file=job.training_file,
        validation_file=job.validation_file,
        validation_split=job.validation_split,
        dataset=job.dataset,
        validation_dataset=job.validation_dataset,
        result_files=[file.id for _, file in ordered],
        trained_tokens=job.trained_tokens,
        error=_error(failure),
        failure=failure,
        hyperparameters=_openai_hyperparameters(job.method),
        seed=job.seed,
        suffix=job.suffix,
        metadata=job.labels,
        integrations=[one for one in job.integrations or () if one["type"] == "wandb"],
        method=in_openai_terms(job.method),
        queue=queue,
        progress=ProgressRead(step=job.step, total_steps=job.total_steps, seconds_remaining=seconds),
        phase=job.phase if state is JobState.RUNNING else job.state,
        attempt=job.attempt,
        warnings=job.warnings,
        eval=_evaluation(job, best),
        artifacts=[_artifact(artifact, file) for artifact, file in ordered],
        resources=job.resources,
        estimate=job.estimate,
        actual=costs.shown(job),
        sinks=job.integrations or [],
        name=job.name,
        notes=job.notes,
        tags=job.tags,
        archived=job.archived,
        reward=reward,
        attention=_attention(job, reward),
    )


def _attention(job: Job, reward: float | None) -> str | None:
    """The first reason to look at a job that succeeded, from its row."""
    if job.state != JobState.SUCCEEDED.value:
        return None
    verdict = job.evaluation.get("verdict") or {}
    if (verdict.get("high") or 0.0) < 0:
        return "The held-out result is worse than before training."
    best = (job.evaluation.get("best") or {}).get("reward")
    if reward == 0 and not best:
        return "Every completion of the last step got a reward of 0."
    guards = [one["message"] for one in job.warnings if one["code"].startswith("guard_")]
    return guards[-1] if guards else None


def event_read(event: JobEvent) -> EventRead:
    """The event in OpenAI's form, where a change of status is a message."""
    return EventRead(
        id=names.event_id(event.job_id, event.sequence),
        created_at=int(event.created_at),
        level=event.level,
        type="metrics" if event.type == "metrics" else "message",
        message=event.message,
        data=event.data,
    )


def checkpoint_read(checkpoint: Checkpoint, job: Job, evaluated: Mapping[str, float]) -> CheckpointRead:
    """`evaluated`: the metrics on the held-out rows, as `eval/…`; empty if it was not evaluated."""
    in_short = {name.removeprefix(EVALUATION): value for name, value in evaluated.items()}
    return CheckpointRead(
        id=checkpoint.id,
        created_at=int(checkpoint.created_at),
        fine_tuning_job_id=job.id,
        fine_tuned_model_checkpoint=names.checkpoint_model(names.model_of(job), checkpoint.step),
        step_number=checkpoint.step,
        is_best=checkpoint.step == job.evaluation.get("best", {}).get("step"),
        metrics={
            "step": checkpoint.step,
            **checkpoint.metrics,
            **in_openai_names(checkpoint.metrics, "train"),
            **evaluated,
            **in_openai_names(in_short, "full_valid"),
        },
        bytes=checkpoint.adapter_bytes,
        sha256=checkpoint.adapter_sha256,
    )


def _seconds_remaining(job: Job) -> float | None:
    """At the mean pace of the steps so far. None if no step is done or no worker holds the job."""
    seconds = costs.seconds_per_step(job.actual)
    if seconds is None or JobState(job.state) not in HELD:
        return None
    return round(seconds * max(0, job.total_steps - job.step), 1)


def _evaluation(job: Job, checkpoint: str | None) -> EvalRead:
    document = with_decoding(job.evaluation, job.method)
    read = EvalRead(**{name: document.get(name) for name in EvalRead.model_fields})
    if read.best is not None:
        read.best["checkpoint"] = checkpoint
    return read


def _seconds(time: float | None) -> int | None:
    return None if time is None else int(time)


def _error(failure: FailureRead | None) -> ErrorRead | None:
    if failure is None:
        return None
    param = "training_file" if failure.code == "dataset_invalid" else None
    return ErrorRead(code=failure.code, message=failure.message, param=param)


def _openai_hyperparameters(method: Mapping[str, Any]) -> dict[str, Any]:
    """OpenAI's deprecated top-level field: its three names for a supervised job, otherwise empty."""
    if method.get("type") != "supervised":
        return {}
    given = method["supervised"]["hyperparameters"]
    return {name: given[name] for name in ("n_epochs", "batch_size", "learning_rate_multiplier")}


def _pools_without_worker(session: Session, jobs: Sequence[Job], settings: Settings) -> dict[str, str]:
    """Pool of a queued job → why the job waits, if no worker of the pool is running."""
    pools = {job.pool for job in jobs if job.state == JobState.QUEUED.value}
    reason = queue_health.NO_WORKER_EMBEDDED if settings.mode == "embedded" else queue_health.NO_WORKER
    unserved = queue_health.unserved_pools(session, pools, settings.sweep_seconds) if pools else set()
    return dict.fromkeys(unserved, reason)


def _queue(job: Job, position: int | None, no_worker: str | None, limit: int | None, now: float) -> QueueRead:
    """The job's place in the queue. `no_worker`: the reason, if no worker of its pool is running.
    `limit`: the tenant's limit of running jobs, if it is reached."""
    if job.state == JobState.RUNNING.value and job.phase.startswith("waiting"):
        return QueueRead(reason=job.phase)
    if job.state != JobState.QUEUED.value:
        return QueueRead()
    if no_worker is not None:
        return QueueRead(position=position, reason=no_worker)
    if job.not_before > now:
        seconds = max(1, round(job.not_before - now))
        return QueueRead(position=position, reason=f"retrying after attempt {job.attempt} in {seconds} s")
    if limit is not None:
        return QueueRead(position=position, reason=f"Tenant limit reached: {limit} running jobs")
    if position is None:
        return QueueRead(reason=f"at least {queue_health.MAX_PLACE} ahead of it in the queue")
    if position > 1:
        return QueueRead(position=position, reason=f"{position - 1} ahead of it in the queue")
    wanted = f" with {job.required_gpus} free GPUs" if job.required_gpus > 1 else ""
    return QueueRead(position=position, reason=f"waiting for a worker{wanted}")


def _artifact(artifact: Artifact, file: File) -> ArtifactRead:
    return ArtifactRead(
        id=file.id,
        kind=artifact.kind,
        step=artifact.step,
        bytes=file.num_bytes,
        sha256=file.sha256,
        filename=file.filename,
    )
