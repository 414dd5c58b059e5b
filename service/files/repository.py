"""Queries about files. Deleted and expired files are never found."""

from typing import Literal

from sqlalchemy import Text, cast, or_, select, tuple_
from sqlalchemy.orm import Session

from service.jobs.store.queue_health import IS_UNFINISHED
from service.platform.clock import db_now
from service.platform.tables.core import File, Job, exists_now

Order = Literal["asc", "desc"]


def find(session: Session, tenant: str, file_id: str) -> File | None:
    """The tenant's file."""
    return session.scalar(select(File).where(File.id == file_id, File.tenant == tenant, exists_now()))


def find_equal(session: Session, file: File) -> File | None:
    """The tenant's file with the same content and purpose."""
    same = (File.tenant == file.tenant, File.sha256 == file.sha256, File.purpose == file.purpose)
    return session.scalars(select(File).where(*same, exists_now()).order_by(File.created_at).limit(1)).first()


def page(
    session: Session, tenant: str, *, purpose: str | None, after: File | None, limit: int, order: Order
) -> list[File]:
    """Files by creation time after the file `after`; one more than `limit` if there are more."""
    query = select(File).where(File.tenant == tenant, exists_now())
    if purpose is not None:
        query = query.where(File.purpose == purpose)
    columns = (File.created_at, File.id)
    if after is not None:
        position, seen = tuple_(*columns), (after.created_at, after.id)
        query = query.where(position > seen if order == "asc" else position < seen)
    query = query.order_by(*(column.asc() if order == "asc" else column.desc() for column in columns))
    return list(session.scalars(query.limit(limit + 1)))


def find_cursor(session: Session, tenant: str, file_id: str) -> File | None:
    """The last file of a page, which may have been deleted since."""
    return session.scalar(select(File).where(File.id == file_id, File.tenant == tenant))


def unfinished_user(session: Session, file: File) -> str | None:
    """Id of an unfinished job that reads a dataset."""
    # retention sets are inside the method
    named = cast(Job.method, Text).contains(f'"{file.id}"', autoescape=True)
    reads_it = or_(Job.training_file == file.id, Job.validation_file == file.id, named)
    query = select(Job.id).where(Job.tenant == file.tenant, IS_UNFINISHED, reads_it)
    return session.scalar(query.limit(1))


def expired(session: Session, tenant: str, limit: int) -> list[File]:
    """Expired files whose content is still stored."""
    query = select(File).where(File.tenant == tenant, File.deleted_at.is_(None), File.expires_at <= db_now())
    return list(session.scalars(query.order_by(File.expires_at).limit(limit)))
