"""Who must wait for whom: locks of the database by name, held until the transaction ends.

Boundary: PostgreSQL's advisory locks; on SQLite BEGIN IMMEDIATE lets one writer in at a time anyway. Those of
the queue are `jobs/statements.py`'s.
"""

from __future__ import annotations

import hashlib

from sqlalchemy import text
from sqlalchemy.orm import Session

TOGETHER = 32
"""So many transactions of a tenant may share its lock."""
_LOCK = text("SELECT pg_advisory_xact_lock(:number)")
_SHARE = text("SELECT pg_advisory_xact_lock(:place), pg_advisory_xact_lock_shared(:number)")


def lock_tenant(session: Session, tenant: str) -> int:
    """Lets one transaction at a time look at what a tenant has and go by it.

    Answers how many others may have stored what this one does not see: none.
    """
    _lock(session, tenant)
    return 0


def share_tenant(session: Session, tenant: str, identity: str) -> int:
    """Keeps out who locks the tenant, and lets `TOGETHER` in at once, each in a place of its own.

    For who adds to what a tenant has, far from its limits: nobody waits while another one commits. `identity`
    chooses the place. Answers how many others may have stored what this one does not see.
    """
    if not _has_locks(session):
        return 0
    place = _number(tenant, "place", str(_number(identity) % TOGETHER))
    session.execute(_SHARE, {"place": place, "number": _number(tenant)})
    return TOGETHER - 1


def lock_request(session: Session, tenant: str, identity: str) -> None:
    """Lets the same request of a tenant wait for its twin. Taken before the tenant's lock."""
    _lock(session, tenant, identity)


def _lock(session: Session, *names: str) -> None:
    if _has_locks(session):
        session.execute(_LOCK, {"number": _number(*names)})


def _has_locks(session: Session) -> bool:
    return session.get_bind().dialect.name == "postgresql"


def _number(*names: str) -> int:
    digest = hashlib.sha256("\n".join(names).encode()).digest()
    return int.from_bytes(digest[:8], signed=True)
