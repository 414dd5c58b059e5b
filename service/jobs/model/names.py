"""Derived names: fine-tuned models, their checkpoints, events, rollouts, completions.

Parsing a name returns None if it has another form.
"""

import re

from service.platform.tables.core import Job

MODEL_PREFIX = "ft:"
PROBE = "ftprobe"
"""Prefix of the ids of probes."""
EXPORT = "ftexport"
"""Prefix of the ids of exports."""


def base_of(model: str) -> str:
    """The catalogue name inside a fine-tuned model's name; any other name is its own base."""
    return model.split(":")[1] if model.startswith(MODEL_PREFIX) and model.count(":") >= 4 else model


def fine_tuned_model(model: str, tenant: str, suffix: str | None, job_id: str) -> str:
    """`ft:<base>:<organisation>:<suffix>:<id>` for a job that starts from `model`."""
    organisation, suffix = (re.sub(r"[^A-Za-z0-9._-]", "-", part) for part in (tenant, suffix or ""))
    return f"ft:{base_of(model)}:{organisation}:{suffix}:{job_id.removeprefix('ftjob-')}"


def model_of(job: Job) -> str:
    """The name of a job's model, which may not exist yet."""
    return job.fine_tuned_model or fine_tuned_model(job.model, job.tenant, job.suffix, job.id)


def checkpoint_prefix(fine_tuned: str) -> str:
    return f"{fine_tuned}:ckpt-step-"


def checkpoint_model(fine_tuned: str, step: int) -> str:
    """Name of the model at a checkpoint."""
    return f"{checkpoint_prefix(fine_tuned)}{step}"


def checkpoint_of(model: str) -> tuple[str, int] | None:
    """A checkpoint's model name → the fine-tuned name in it, and the step."""
    match = re.fullmatch(r"(ft:.+):ckpt-step-(\d{1,9})", model)
    return (match[1], int(match[2])) if match else None


def job_of(fine_tuned: str) -> str:
    """The job id in a fine-tuned name; the name may belong to another job, or to none."""
    return f"ftjob-{fine_tuned.rpartition(':')[2]}"


def is_job(row_id: str) -> bool:
    """Whether a row of the queue is a fine-tuning job, and not a probe or an export."""
    return not row_id.startswith((f"{PROBE}-", f"{EXPORT}-"))


def event_id(job_id: str, sequence: int) -> str:
    return f"ftevent-{job_id.removeprefix('ftjob-')}-{sequence}"


def event_sequence(job_id: str, event: str) -> int | None:
    """The number inside an event id of this job."""
    match = re.fullmatch(rf"ftevent-{re.escape(job_id.removeprefix('ftjob-'))}-(\d{{1,15}})", event)
    return int(match[1]) if match else None


def rollout_id(split: str, step: int, position: int) -> str:
    return f"rollout-{split}-{step}-{position}"


def rollout_place(rollout: str) -> tuple[str, int, int] | None:
    """Split, step and position of a rollout id."""
    match = re.fullmatch(r"rollout-(train|validation|retention)-(\d{1,15})-(\d{1,15})", rollout)
    return (match[1], int(match[2]), int(match[3])) if match else None


def completion_id(split: str, step: int, position: int, index: int) -> str:
    return f"completion-{split}-{step}-{position}-{index}"


def completion_place(completion: str) -> tuple[str, int, int, int] | None:
    """Split, step, position and index of a completion's id."""
    match = re.fullmatch(
        r"completion-(train|validation|retention)-(\d{1,15})-(\d{1,15})-(\d{1,9})", completion
    )
    return (match[1], int(match[2]), int(match[3]), int(match[4])) if match else None
