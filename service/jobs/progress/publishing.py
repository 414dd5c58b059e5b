"""Rows of published checkpoints: written under the fence, withdrawn if damaged, retired if too many.

The worker uploads archives before their row is written, and deletes them after it is deleted.
"""

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from service.jobs.model import names
from service.jobs.store import history
from service.jobs.store.transitions import JOBS, holds, lock_held
from service.platform.db import lock_tenant
from service.platform.tables.core import Checkpoint, Job


def publish_checkpoint(session: Session, row: Checkpoint) -> bool:
    """Make a checkpoint visible; a new step clears the failures. False: the row's fence is stale.

    It replaces an earlier one of the same step, whose id it keeps.
    """
    job_id, step, fence = row.job_id, row.step, row.fence
    if lock_held(session, job_id, fence) is None:
        return False
    session.execute(
        update(JOBS)
        .where(holds(job_id, fence), JOBS.c.checkpoint_step < step)
        .values(checkpoint_step=step, failures=0)
    )
    known = select(Checkpoint.id).where(Checkpoint.job_id == job_id, Checkpoint.step == step)
    row.id = session.scalar(known) or row.id
    session.merge(row)
    data = {"step": step, "checkpoint": row.id}
    message = f"Checkpoint created at step {step}."
    history.append(session, job_id, history.HistoryEntry("message", message, data=data, fence=fence))
    return True


def usable_checkpoints(session: Session, job_id: str) -> list[Checkpoint]:
    """Checkpoints that a run can resume from, newest first."""
    rows = select(Checkpoint).where(Checkpoint.job_id == job_id, Checkpoint.state_key.is_not(None))
    return list(session.scalars(rows.order_by(Checkpoint.step.desc())))


def withdraw_checkpoint(session: Session, job_id: str, fence: int, step: int, reason: str) -> bool:
    """Exclude a checkpoint with a damaged state from resuming. False: the fence is stale."""
    if lock_held(session, job_id, fence) is None:
        return False
    where = (Checkpoint.job_id == job_id, Checkpoint.step == step)
    session.execute(update(Checkpoint).where(*where).values(state_key=None, shards={}))
    usable = (Checkpoint.job_id == job_id, Checkpoint.state_key.is_not(None))
    newest = select(func.coalesce(func.max(Checkpoint.step), 0)).where(*usable).scalar_subquery()
    session.execute(update(JOBS).where(holds(job_id, fence)).values(checkpoint_step=newest))
    message = f"The checkpoint of step {step} is skipped: {reason}"
    entry = history.HistoryEntry("message", message, "warn", {"step": step}, fence)
    history.append(session, job_id, entry)
    return True


def retire_checkpoints(session: Session, job_id: str, fence: int, keep: int) -> list[str] | None:
    """Delete all but the newest `keep`, the best evaluated one and those that other jobs started from.

    Withdrawn checkpoints count as the oldest: a run that restarts without them publishes smaller steps.
    Returns the storage keys to delete. None: the fence is stale.
    """
    job = session.get(Job, job_id)
    if job is None:
        return None
    lock_tenant(session, job.tenant)  # a job that is being created may be about to start from one
    held = select(Job.evaluation).where(holds(job_id, fence)).with_for_update()
    evaluation = session.execute(held).scalar_one_or_none()
    if evaluation is None:
        return None
    usable_first = Checkpoint.state_key.is_(None), Checkpoint.step.desc()
    query = select(Checkpoint).where(Checkpoint.job_id == job_id).order_by(*usable_first)
    rows = session.scalars(query).all()
    best = evaluation.get("best", {}).get("step")
    started_from = _steps_started_from(session, job, [row.step for row in rows[keep:]])
    retired = [row for row in rows[keep:] if row.step != best and row.step not in started_from]
    ids = [row.id for row in retired]
    session.execute(delete(Checkpoint).where(Checkpoint.id.in_(ids)))
    return [key for row in retired for key in row.storage_keys]


def _steps_started_from(session: Session, job: Job, steps: list[int]) -> set[int]:
    """The steps whose checkpoint another job names as its model."""
    by_name = {names.checkpoint_model(names.model_of(job), step): step for step in steps}
    used = select(Job.model).where(Job.tenant == job.tenant, Job.model.in_(by_name))
    return {by_name[name] for name in session.scalars(used)}
