"""The list of a tenant's jobs: filters, orders, and pages that follow a job.

Cost of a page: ordered by time without a filter, one page of the index `ix_jobs_tenant` is read. With a
filter, the index is read until the page is full: if few jobs match, all of the tenant's jobs. Any other order
reads and sorts all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, and_, case, func, or_, select, tuple_
from sqlalchemy.orm import Session

from service.jobs.model.states import PUBLIC
from service.jobs.store.transitions import IS_JOB
from service.platform import audit
from service.platform.db import is_postgresql
from service.platform.pages import unknown_cursor
from service.platform.tables.core import Job

Status = Literal["queued", "running", "paused", "succeeded", "failed", "cancelled"]
Sort = Literal[
    "-created", "created", "name", "-name", "status", "-status", "model", "-model", "held_out", "-held_out"
]
_STATUS = case(
    {state.value: shown.value for state, shown in PUBLIC.items() if shown is not state},
    value=Job.state,
    else_=Job.state,
)
NO_RESULT = 1e300
"""Sorts jobs without a held-out difference last, in both directions."""


@dataclass(frozen=True)
class JobFilter:
    """Conditions that listed jobs meet; None: no condition."""

    status: Status | None
    model: str | None
    """Full name of the model that the job starts from."""
    tag: str | None
    text: str | None
    """Part of the job's name, suffix, id or model, ignoring case."""
    archived: bool | None
    labels: Mapping[str, str] | None
    """Metadata to match; empty: jobs without metadata."""


def page(
    session: Session, tenant: str, wanted: JobFilter, *, sort: Sort, after: str | None, limit: int
) -> list[Job]:
    """The tenant's jobs after the job `after`, at most `limit` + 1; jobs that sort equal are newest first.

    `after`: id of a job of the tenant, which need not meet the filter and, in an order by time, may have been
    deleted. Raises NotFound for any other id.
    """
    query = select(Job).where(IS_JOB, Job.tenant == tenant, *_conditions(session, wanted))
    key, is_descending = _key(sort), sort.startswith("-")
    newest_first = (Job.created_at.desc(), Job.id.desc())
    if after is not None:
        query = query.where(_follows(key, is_descending, _place(session, tenant, after, key)))
    if sort == "created":
        query = query.order_by(Job.created_at, Job.id)
    elif key is None:
        query = query.order_by(*newest_first)
    else:
        query = query.order_by(key.desc() if is_descending else key, *newest_first)
    return list(session.scalars(query.limit(limit + 1)))


def _key(sort: Sort) -> ColumnElement[Any] | None:
    """The value to sort by; None: the time of creation."""
    difference = Job.evaluation["verdict", "difference"].as_float()
    keys: dict[str, Any] = {
        "name": func.lower(func.coalesce(Job.name, Job.suffix, Job.id)),
        "status": _STATUS,
        "model": func.lower(Job.model),
        "held_out": func.coalesce(difference, -NO_RESULT if sort.startswith("-") else NO_RESULT),
    }
    return keys.get(sort.removeprefix("-"))


def _place(session: Session, tenant: str, after: str, key: ColumnElement[Any] | None) -> Any:
    """Creation time and id of the job `after`, and its value of `key`. Raises NotFound.

    The time of a deleted job is in the audit trail.
    """
    columns = (Job.created_at, Job.id) if key is None else (Job.created_at, Job.id, key)
    job = session.execute(select(*columns).where(IS_JOB, Job.tenant == tenant, Job.id == after)).one_or_none()
    if job is not None:
        return job
    created_at = audit.time_of(session, "job.create", tenant=tenant, object_id=after) if key is None else None
    if created_at is None:
        raise unknown_cursor(after)
    return created_at, after


def _follows(key: ColumnElement[Any] | None, is_descending: bool, last: Any) -> ColumnElement[bool]:
    time, place = tuple_(Job.created_at, Job.id), (last[0], last[1])
    if key is None:
        return time < place if is_descending else time > place
    beyond = key < last[2] if is_descending else key > last[2]
    return or_(beyond, and_(key == last[2], time < place))


def _conditions(session: Session, wanted: JobFilter) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if wanted.status is not None:
        found.append(Job.state.in_([state for state, public in PUBLIC.items() if public == wanted.status]))
    if wanted.model is not None:
        found.append(Job.model == wanted.model)
    if wanted.archived is not None:
        found.append(Job.archived.is_(wanted.archived))
    if wanted.tag is not None:
        found.append(_has_tag(session, wanted.tag))
    if wanted.text:
        columns = (Job.name, Job.suffix, Job.id, Job.model)
        found.append(or_(*(column.icontains(wanted.text, autoescape=True) for column in columns)))
    if wanted.labels is not None and not wanted.labels:
        found.append(or_(Job.labels.is_(None), Job.labels == {}))
    return found + [_has_label(session, *label) for label in (wanted.labels or {}).items()]


def _has_tag(session: Session, tag: str) -> ColumnElement[bool]:
    each = func.jsonb_array_elements_text if is_postgresql(session) else func.json_each
    value = each(Job.tags).table_valued("value", name="each_tag").c.value
    return select(value).where(value == tag).exists()


def _has_label(session: Session, name: str, value: str) -> ColumnElement[bool]:
    if is_postgresql(session):
        return Job.labels[name].as_string() == value
    # SQLite's JSON paths can quote neither every key nor find an escaped one.
    pair = func.json_each(Job.labels).table_valued("key", "value")
    return select(pair.c.key).where(pair.c.key == name, pair.c.value == value).exists()
