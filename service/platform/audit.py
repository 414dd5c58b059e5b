"""The audit trail: one row for each change, with its actor, in the change's own transaction.

Rows are only added: the database refuses to change or delete one (`migrations/`).
"""

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.platform.principal import Principal
from service.platform.tables.core import AuditEntry

OBJECT_CHARACTERS = 64
"""Size of the column. All ids fit; the name of a hub model may be longer and is cut."""


def record(session: Session, principal: Principal, action: str, object_id: str) -> None:
    """Record that `principal` did `action` (such as `file.delete`) to `object_id`."""
    actor = {"tenant": principal.tenant, "key_id": principal.key_id, "request_id": principal.request_id}
    session.add(AuditEntry(action=action, object_id=object_id[:OBJECT_CHARACTERS], **actor))


def time_of(session: Session, action: str, *, tenant: str, object_id: str) -> float | None:
    """When the tenant did `action` to the object; None: never. Reads the whole trail, which has no index."""
    done = (AuditEntry.action == action, AuditEntry.tenant == tenant, AuditEntry.object_id == object_id)
    return session.scalars(select(AuditEntry.created_at).where(*done).limit(1)).first()


def newest(session: Session, *, tenant: str | None, limit: int) -> list[AuditEntry]:
    """The last changes (of one tenant), newest first."""
    query = select(AuditEntry).order_by(AuditEntry.id.desc()).limit(limit)
    return list(session.scalars(query if tenant is None else query.where(AuditEntry.tenant == tenant)))
