"""Keys, shares and tenants: what clients create, list and revoke.

Boundary: decides and opens transactions.
"""

from dataclasses import dataclass

from sqlalchemy import and_, func, select, true
from sqlalchemy.orm import Session

from service.jobs.store.queue_health import num_unfinished
from service.jobs.store.repository import require_job, stored_bytes
from service.keys.schemas import (
    KeyCreate,
    KeyRead,
    KeyRotate,
    KeyWithSecret,
    ShareCreate,
    ShareRead,
    ShareWithUrl,
    TenantLimits,
    TenantRead,
)
from service.platform.clock import db_now
from service.platform.db import lock_tenant
from service.platform.errors import Conflict, Forbidden, NotFound, Unauthorized
from service.platform.pages import newest_page
from service.platform.principal import Principal
from service.platform.tables.core import ApiKey
from service.web.auth import IS_USABLE, KEY_PATTERN, create_key, require_valid_key, revoke_key, rotate_key
from service.web.dependencies import DatabaseDep, SettingsDep

MAX_SHARES = 50
"""Active links of one job."""


@dataclass(frozen=True)
class Shares:
    """Links that may read one job until they expire."""

    database: DatabaseDep

    def create(self, principal: Principal, job_id: str, body: ShareCreate, base_url: str) -> ShareWithUrl:
        """A new link. Raises NotFound, Conflict at the limit of active links, Unauthorized."""
        with self.database.transaction() as session:
            lock_tenant(session, principal.tenant)
            require_valid_key(session, principal)
            require_job(session, principal.tenant, job_id)
            if len(_shares(session, principal.tenant, job_id)) >= MAX_SHARES:
                raise Conflict(f"Limit of {MAX_SHARES} active links of a job reached. Revoke one.")
            key = create_key(
                session,
                principal.tenant,
                expires_at=db_now() + body.expires_in_seconds,
                job_id=job_id,
                actor=principal,
            )
            share = ShareRead.model_validate(_row_of(session, key))
        return ShareWithUrl(**share.model_dump(), url=f"{base_url}#/shared/{key}")

    def list(self, tenant: str, job_id: str) -> list[ShareRead]:
        """Active links of the job, newest first. Raises NotFound."""
        with self.database.reading() as session:
            require_job(session, tenant, job_id)
            return [ShareRead.model_validate(row) for row in _shares(session, tenant, job_id)]

    def revoke(self, principal: Principal, job_id: str, share_id: str) -> None:
        """End a link at once. Raises NotFound."""
        with self.database.transaction() as session:
            require_job(session, principal.tenant, job_id)
            is_active = share_id in [row.id for row in _shares(session, principal.tenant, job_id)]
            if not is_active or not revoke_key(session, share_id, actor=principal):
                raise NotFound(f"There is no active link {share_id} of this job.", param="share_id")


@dataclass(frozen=True)
class Keys:
    """All keys and tenants of the deployment."""

    database: DatabaseDep
    settings: SettingsDep

    def read(self, key_id: str) -> KeyRead:
        """The key of a request. Raises Unauthorized for a share deleted with its job meanwhile."""
        with self.database.reading() as session:
            row = session.get(ApiKey, key_id)
        if row is None:
            raise Unauthorized("Invalid API key.")
        return KeyRead.model_validate(row)

    def page(self, tenant: str | None, *, after: str | None, limit: int) -> list[KeyRead]:
        """Keys (of one tenant), newest first, without shares."""
        of_tenant = true() if tenant is None else ApiKey.tenant == tenant
        with self.database.reading() as session:
            found = newest_page(
                session, ApiKey, and_(ApiKey.job_id.is_(None), of_tenant), after=after, limit=limit
            )
            return [KeyRead.model_validate(row) for row in found]

    def create(self, principal: Principal, body: KeyCreate) -> KeyWithSecret:
        """A new key, which only this response contains. Raises Unauthorized."""
        seconds = body.expires_in_seconds
        with self.database.transaction() as session:
            require_valid_key(session, principal)
            key = create_key(
                session,
                body.tenant,
                name=body.name,
                scopes=body.scopes,
                expires_at=None if seconds is None else db_now() + seconds,
                actor=principal,
            )
            about = KeyRead.model_validate(_row_of(session, key))
        return KeyWithSecret(**about.model_dump(), key=key)

    def rotate(self, principal: Principal, key_id: str, body: KeyRotate) -> KeyWithSecret:
        """A new key like this one. Raises NotFound for an unusable one, Forbidden for an admin key."""
        with self.database.transaction() as session:
            require_valid_key(session, principal)
            row = session.get(ApiKey, key_id, with_for_update=True)
            if row is not None and "admin" in row.scopes:
                raise Forbidden("Only `grpo keys rotate` makes admin keys.", code="admin_key")
            key = rotate_key(session, key_id, old_key_hours=body.old_key_hours, actor=principal)
            if key is None:
                raise NotFound(f"There is no usable key {key_id}.", param="key_id")
            about = KeyRead.model_validate(_row_of(session, key))
        return KeyWithSecret(**about.model_dump(), key=key)

    def revoke(self, principal: Principal, key_id: str) -> KeyRead:
        """The key, refused from now on. Raises NotFound for an unknown or revoked one."""
        with self.database.transaction() as session:
            row = session.get(ApiKey, key_id)
            if row is None or not revoke_key(session, key_id, actor=principal):
                raise NotFound(f"There is no unrevoked key {key_id}.", param="key_id")
            session.refresh(row)
            return KeyRead.model_validate(row)

    def tenants(self) -> list[TenantRead]:
        """All tenants that have or had a key, by name, with what they use."""
        of_tenant = select(ApiKey.tenant, func.count().filter(IS_USABLE)).where(ApiKey.job_id.is_(None))
        with self.database.reading() as session:
            counted = session.execute(of_tenant.group_by(ApiKey.tenant).order_by(ApiKey.tenant)).all()
            return [self._tenant(session, tenant, num_keys) for tenant, num_keys in counted]

    def _tenant(self, session: Session, tenant: str, num_keys: int) -> TenantRead:
        settings = self.settings
        return TenantRead(
            id=tenant,
            num_keys=num_keys,
            unfinished_jobs=num_unfinished(session, tenant),
            stored_bytes=stored_bytes(session, tenant),
            limits=TenantLimits(
                unfinished_jobs=settings.max_queued_jobs,
                running_jobs=settings.max_running_jobs,
                stored_bytes=settings.max_stored_bytes,
                requests_per_second=settings.max_requests_per_second,
            ),
        )


def _shares(session: Session, tenant: str, job_id: str) -> list[ApiKey]:
    query = select(ApiKey).where(ApiKey.tenant == tenant, ApiKey.job_id == job_id, IS_USABLE)
    return list(session.scalars(query.order_by(ApiKey.created_at.desc(), ApiKey.public_id)))


def _row_of(session: Session, key: str) -> ApiKey:
    match = KEY_PATTERN.fullmatch(key)
    assert match is not None
    return session.get_one(ApiKey, match[1])
