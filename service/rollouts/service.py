"""A job's rollouts: lists of groups or of completions, and an overview. Boundary: no HTTP."""

from contextlib import nullcontext

from grpo_engine.config.job import Reinforcement
from grpo_engine.contract.records import OVERLONG
from grpo_engine.graders import part_names
from service.jobs.model import names
from service.jobs.model.methods import graders_of, parsed_method
from service.jobs.store.repository import require_job
from service.platform.db import Database
from service.platform.pages import unknown_cursor
from service.platform.tables.core import Job, Rollout
from service.rollouts import repository
from service.rollouts.repository import RolloutEntry, Unit
from service.rollouts.schemas import RolloutOverview
from service.rollouts.selection import Selection, refuse_unknown_parts
from service.web.limits import ConcurrencyLimit

search_limit = ConcurrencyLimit("searches through all rollouts of a job", per_tenant=4, overall=8)


def parts_of(job: Job) -> list[str]:
    """Names of all reward parts that completions of this job may have, sorted."""
    method = parsed_method(job.method)
    found = [name for _, grader in graders_of(method) for name in part_names(grader)]
    if isinstance(method, Reinforcement) and method.reinforcement.hyperparameters.overlong_buffer_tokens:
        found.append(OVERLONG)
    return sorted(set(found))


def checked_job(database: Database, tenant: str, job_id: str, selection: Selection) -> Job:
    """The tenant's job. Raises NotFound, and InvalidRequest for a part that it does not have."""
    with database.reading() as session:
        job = require_job(session, tenant, job_id)
    if selection.fired or selection.not_fired:
        refuse_unknown_parts(selection, parts_of(job))
    return job


def page(
    database: Database, job: Job, selection: Selection, unit: Unit, *, limit: int, after: str | None
) -> list[RolloutEntry]:
    """One more than `limit` if there are more.

    Raises NotFound for an unknown cursor, TooManyRequests at the limit of searches.
    """
    with search_limit.slot(job.tenant) if selection.is_wide else nullcontext():
        last = None if after is None else _last(database, job.id, after, unit)
        return repository.page(database, job.id, selection, unit, limit=limit, after=last)


def overview(database: Database, tenant: str, job_id: str) -> RolloutOverview:
    with database.reading() as session:
        job = require_job(session, tenant, job_id)
        return RolloutOverview(parts=parts_of(job), data=repository.steps(session, job_id))


def _last(database: Database, job_id: str, after: str, unit: Unit) -> RolloutEntry:
    """The last entry of the previous page. Raises NotFound."""
    place = names.rollout_place(after) if unit == "group" else names.completion_place(after)
    with database.reading() as session:
        group = session.get(Rollout, (job_id, *place[:3])) if place else None
    index = place[3] if place is not None and len(place) == 4 else None
    if group is None or (index is not None and index >= len(group.data["completions"])):
        raise unknown_cursor(after)
    return RolloutEntry(group, index)
