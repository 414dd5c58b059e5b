"""The actor: the tenant and key of a request, or a part of this service on a tenant's behalf.

Boundary: plain Python, so that the worker may use it; `web/auth.py` makes one from a request's key.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Principal:
    """A key's tenant and scopes, and the id of the request."""

    tenant: str
    key_id: str
    scopes: frozenset[str] = frozenset()
    job_id: str | None = None
    """The only job that the key of a shared link may read; None: an ordinary key."""
    request_id: str = ""

    @property
    def spender(self) -> str:
        """The owner of the limits of requests and streams; viewers of a shared job have their own limits."""
        return self.job_id or self.tenant
