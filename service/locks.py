"""Who must wait for whom: locks of the database by name, held until the transaction ends.

Boundary: PostgreSQL's advisory locks; on SQLite BEGIN IMMEDIATE lets one writer in at a time anyway. Those of
the queue are `jobs/statements.py`'s.
"""

from __future__ import annotations

import hashlib

from sqlalchemy import text
from sqlalchemy.orm import Session

_LOCK = text("SELECT pg_advisory_xact_lock(:number)")


def lock_tenant(session: Session, tenant: str) -> None:
    """Lets one transaction at a time look at what a tenant has and go by it."""
    _lock(session, tenant)


def lock_request(session: Session, tenant: str, identity: str) -> None:
    """Lets the same request of a tenant wait for its twin. Taken before the tenant's lock."""
    _lock(session, tenant, identity)


def _lock(session: Session, *names: str) -> None:
    if session.get_bind().dialect.name == "postgresql":
        digest = hashlib.sha256("\n".join(names).encode()).digest()
        session.execute(_LOCK, {"number": int.from_bytes(digest[:8], signed=True)})
