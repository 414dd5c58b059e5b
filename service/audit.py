"""Who changed what: one row for each change, in the change's own transaction."""

from __future__ import annotations

from sqlalchemy.orm import Session

from service.models import AuditEntry
from service.principal import Principal


def record(session: Session, principal: Principal, action: str, object_id: str, request_id: str = "") -> None:
    """Note that `principal` did `action` (such as `file.delete`) to `object_id`."""
    session.add(
        AuditEntry(
            tenant=principal.tenant,
            key_id=principal.key_id,
            action=action,
            object_id=object_id,
            request_id=request_id,
        )
    )
