"""Who acts: the tenant and key of a request, or a part of this service in somebody's name.

Boundary: plain Python, so that the worker may use it; `auth.py` makes one out of a request's key.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Principal:
    """Who is asking: the key's tenant and what the key may do."""

    tenant: str
    key_id: str
    scopes: frozenset[str]
