"""API keys: `grpo_<public id>_<secret>`, of which only a digest of the secret is stored.

Boundary: creates, revokes and checks keys. This is the only source of a request's tenant.
"""

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy import SQLColumnExpression, and_, bindparam, or_, select, update
from sqlalchemy.orm import Session

from service.platform import audit
from service.platform.clock import db_now, read_clock
from service.platform.db import Database
from service.platform.errors import Forbidden, Unauthorized
from service.platform.ids import random_text
from service.platform.principal import Principal
from service.platform.tables.core import ApiKey
from service.web.dependencies import DatabaseDep, KeyUseDep, RequestRateDep
from service.web.request_metrics import route_of

SCOPES = frozenset({"read", "write", "admin"})
PUBLIC_ID_LENGTH = 16
SECRET_LENGTH = 43
"""Letters and digits: 256 bits."""
OLD_KEY_HOURS, MAX_OLD_KEY_HOURS = 24, 720
"""How long a key works after its rotation, by default and at most."""
KEY_PATTERN = re.compile(rf"grpo_([0-9A-Za-z]{{{PUBLIC_ID_LENGTH}}})_([0-9A-Za-z]{{{SECRET_LENGTH}}})")
TENANT_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MAX_NAME_LENGTH = 128
OPERATOR = Principal("", "cli")
"""Actor of key changes by `grpo keys` in the audit trail."""
JOB = "/v1/fine_tuning/jobs/{job_id}"
CURRENT_KEY = "/v1/keys/current"
SHARED_ROUTES = frozenset(
    {
        JOB,
        *(f"{JOB}/{name}" for name in ("events", "stream", "metrics", "diagnosis", "checkpoints")),
        *(f"{JOB}/rollouts{name}" for name in ("", "/completions", "/overview")),
    }
)
"""What the key of a shared link may GET, of its own job; every route that is not listed is refused."""
UNKNOWN_KEY_SHA256 = "0" * 64
"""Digest to compare with if a key is unknown, so that its refusal takes as long as that of a wrong secret."""

_KEY = select(
    ApiKey.tenant,
    ApiKey.secret_sha256,
    ApiKey.scopes,
    ApiKey.revoked_at,
    ApiKey.expires_at,
    ApiKey.job_id,
    db_now().label("now"),
).where(ApiKey.public_id == bindparam("public_id"))
"""Executed for every request and never cached, so that a revoked key is refused at once."""
IS_USABLE = and_(ApiKey.revoked_at.is_(None), or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > db_now()))
_USABLE = select(ApiKey.public_id).where(
    ApiKey.public_id.in_(bindparam("public_ids", expanding=True)), IS_USABLE
)


def create_key(
    session: Session,
    tenant: str,
    *,
    name: str = "",
    scopes: Iterable[str] = ("read", "write"),
    expires_at: SQLColumnExpression[float] | float | None = None,
    job_id: str | None = None,
    actor: Principal = OPERATOR,
) -> str:
    """Create a tenant's key and return it. Only a digest of its secret is stored.

    `expires_at`: Unix seconds, or an expression such as `db_now() + 60`; None: never. `job_id`: the only job
    that the key may read, of a shared link. Such a key has no scopes, so that an API process of an older
    version refuses it. Raises ValueError for an invalid tenant, name or scope.
    """
    if not TENANT_PATTERN.fullmatch(tenant):
        raise ValueError(
            "a tenant name is 1 to 64 letters, digits, '.', '_' or '-', and starts with a letter or digit, "
            f"not {tenant!r}"
        )
    checked_name(name)
    if unknown := set(scopes) - SCOPES:
        raise ValueError(f"unknown scopes: {', '.join(sorted(unknown))}")
    public_id, secret = random_text(PUBLIC_ID_LENGTH), random_text(SECRET_LENGTH)
    session.add(
        ApiKey(
            public_id=public_id,
            tenant=tenant,
            secret_sha256=_digest(secret),
            name=name,
            scopes=[] if job_id else sorted(set(scopes)),
            expires_at=expires_at,
            job_id=job_id,
        )
    )
    session.flush()
    _record(session, actor, tenant, "job.share" if job_id else "key.create", public_id)
    return f"grpo_{public_id}_{secret}"


def checked_name(name: str) -> str:
    """The name of a key. Raises ValueError if lists could not show it."""
    if len(name) > MAX_NAME_LENGTH or not name.isprintable():
        raise ValueError(f"a key's name has at most {MAX_NAME_LENGTH} printable characters")
    return name


def list_keys(session: Session) -> list[ApiKey]:
    """All keys, oldest first; revoked and expired ones and shares too."""
    return list(session.scalars(select(ApiKey).order_by(ApiKey.created_at, ApiKey.public_id)))


def revoke_key(session: Session, public_id: str, *, actor: Principal = OPERATOR) -> bool:
    """Revoke a key or a share. False if there is no such unrevoked key."""
    statement = (
        update(ApiKey)
        .where(ApiKey.public_id == public_id, ApiKey.revoked_at.is_(None))
        .values(revoked_at=db_now())
        .returning(ApiKey.tenant, ApiKey.job_id)
    )
    revoked = session.execute(statement).one_or_none()
    if revoked is not None:
        _record(session, actor, revoked.tenant, "job.unshare" if revoked.job_id else "key.revoke", public_id)
    return revoked is not None


def rotate_key(
    session: Session, public_id: str, *, old_key_hours: int, actor: Principal = OPERATOR
) -> str | None:
    """Create a key like this one and return it; None if there is no such usable key.

    The old key expires after `old_key_hours`, if it does not expire earlier; 0: it is revoked.
    """
    wanted = select(ApiKey).where(ApiKey.public_id == public_id, ApiKey.job_id.is_(None), IS_USABLE)
    old = session.scalars(wanted.with_for_update()).one_or_none()
    if old is None:
        return None
    key = create_key(
        session, old.tenant, name=old.name, scopes=old.scopes, expires_at=old.expires_at, actor=actor
    )
    if old_key_hours:
        ends_at = read_clock(session) + old_key_hours * 3600
        old.expires_at = ends_at if old.expires_at is None else min(old.expires_at, ends_at)
    else:
        old.revoked_at = read_clock(session)
    session.flush()
    _record(session, actor, old.tenant, "key.rotate", public_id)
    return key


def authenticate(database: Database, authorization: str | None) -> Principal:
    """The principal of an `Authorization` header. Raises Unauthorized."""
    scheme, _, key = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise Unauthorized("No API key: send 'Authorization: Bearer <key>'.", code="missing_api_key")
    match = KEY_PATTERN.fullmatch(key.strip())
    if match is None:
        raise Unauthorized("Invalid API key.")
    public_id, secret = match.groups()
    with database.reading() as session:
        found = session.execute(_KEY, {"public_id": public_id}).one_or_none()
    is_right = hmac.compare_digest(found.secret_sha256 if found else UNKNOWN_KEY_SHA256, _digest(secret))
    if found is None or not is_right or found.revoked_at is not None:
        raise Unauthorized("Invalid API key.")
    if found.expires_at is not None and found.expires_at <= found.now:
        raise Unauthorized("This API key has expired.", code="expired_api_key")
    return Principal(found.tenant, public_id, frozenset(found.scopes), found.job_id)


def usable_keys(session: Session, public_ids: Sequence[str]) -> set[str]:
    """The keys among these that are neither revoked nor expired, for streams opened with them."""
    return set(session.scalars(_USABLE, {"public_ids": list(public_ids)}))


def require_valid_key(session: Session, principal: Principal) -> None:
    """Raise Unauthorized if the key was revoked or expired while a change was prepared."""
    if not usable_keys(session, [principal.key_id]):
        raise Unauthorized("This API key was revoked or has expired.")


def _record(session: Session, actor: Principal, tenant: str, action: str, public_id: str) -> None:
    audit.record(session, replace(actor, tenant=tenant), action, public_id)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _is_shared(request: Request, job_id: str) -> bool:
    """Whether a share of the job may send this request."""
    if request.method != "GET":
        return False
    path = route_of(request.scope)
    return path == CURRENT_KEY or (path in SHARED_ROUTES and request.path_params.get("job_id") == job_id)


def _requires(*scopes: str) -> Callable[..., Principal]:
    def check(request: Request, database: DatabaseDep, rate: RequestRateDep, key_use: KeyUseDep) -> Principal:
        if KEY_PATTERN.search(request.url.query):
            raise Unauthorized(
                "API keys in URLs end up in logs. Revoke this key and send keys in the Authorization header.",
                code="api_key_in_url",
            )
        found = authenticate(database, request.headers.get("authorization"))
        principal = replace(found, request_id=request.state.request_id)
        request.state.principal = principal
        key_use.note(principal.key_id)
        rate.spend(principal.spender)
        if principal.job_id is not None:
            if not _is_shared(request, principal.job_id):
                raise Forbidden("This shared link may only read its own job.", code="shared_link")
        elif missing := set(scopes) - principal.scopes:
            given = ", ".join(sorted(principal.scopes)) or "none"
            raise Forbidden(f"This API key lacks the scope {min(missing)}; its scopes: {given}.")
        return principal

    return check


KeyHolder = Annotated[Principal, Depends(_requires())]
"""The principal of any valid key."""
Reader = Annotated[Principal, Depends(_requires("read"))]
Writer = Annotated[Principal, Depends(_requires("write"))]
Sharer = Annotated[Principal, Depends(_requires("read", "write"))]
"""The principal of a key that may create shared links."""
Admin = Annotated[Principal, Depends(_requires("admin"))]
