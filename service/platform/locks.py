"""Database locks by name, held until the transaction ends.

Boundary: PostgreSQL's advisory locks; on SQLite, BEGIN IMMEDIATE admits one writer at a time anyway. The
lock of the queue's claims is in `jobs/store/queue.py`.
"""

from __future__ import annotations

import hashlib

from sqlalchemy import text
from sqlalchemy.orm import Session

_LOCK = text("SELECT pg_advisory_xact_lock(:number)")


def lock_tenant(session: Session, tenant: str) -> None:
    """Lock what a tenant has, for transactions that read it and change it on that basis."""
    _lock(session, tenant)


def lock_request(session: Session, tenant: str, identity: str) -> None:
    """Make a repeated request wait for the first one. Taken before the tenant's lock."""
    _lock(session, tenant, identity)


def _lock(session: Session, *names: str) -> None:
    if session.get_bind().dialect.name == "postgresql":
        digest = hashlib.sha256("\n".join(names).encode()).digest()
        session.execute(_LOCK, {"number": int.from_bytes(digest[:8], signed=True)})
