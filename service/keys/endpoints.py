"""`/v1/keys`, `/v1/tenants` and `/v1/fine_tuning/jobs/{id}/shares`: HTTP in, HTTP out."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request

from service.jobs.api.dependencies import JobId
from service.keys.schemas import (
    KeyCreate,
    KeyRead,
    KeyRotate,
    KeyWithSecret,
    ShareCreate,
    ShareRead,
    ShareRevoked,
    ShareWithUrl,
    TenantList,
)
from service.keys.service import Keys, Shares
from service.web.auth import CURRENT_KEY, JOB, Admin, KeyHolder, Reader, Sharer, Writer
from service.web.pagination import After, Limit, Page, page_of

router = APIRouter()

KEYS = "/v1/keys"
SHARES = f"{JOB}/shares"
KeyId = Annotated[str, Path(description="Id of the key.")]
ShareId = Annotated[str, Path(description="Id of the link.")]
TenantName = Annotated[str | None, Query(max_length=64, description="Only keys of this tenant.")]
KeysDep = Annotated[Keys, Depends()]
SharesDep = Annotated[Shares, Depends()]


@router.get(CURRENT_KEY, tags=["keys"])
def retrieve_current_key(principal: KeyHolder, keys: KeysDep) -> KeyRead:
    """Name, tenant, scopes and expiry of the key that sent the request. Any valid key may send it."""
    return keys.read(principal.key_id)


@router.get(KEYS, tags=["keys"])
def list_keys(
    principal: Admin, keys: KeysDep, tenant: TenantName = None, after: After = None, limit: Limit = 20
) -> Page[KeyRead]:
    """Keys of all tenants, newest first, without their secrets; needs the scope admin."""
    return page_of(keys.page(tenant, after=after, limit=limit), limit)


@router.post(KEYS, tags=["keys"])
def create_key(body: KeyCreate, principal: Admin, keys: KeysDep) -> KeyWithSecret:
    """Create a key of any tenant; needs the scope admin. Only this response contains the key."""
    return keys.create(principal, body)


@router.post(f"{KEYS}/{{key_id}}/rotate", tags=["keys"])
def rotate_key(
    key_id: KeyId, principal: Admin, keys: KeysDep, body: KeyRotate | None = None
) -> KeyWithSecret:
    """Replace a key with a new one that has the same tenant, name, scopes and expiry; needs the scope admin.

    Only this response contains the new key. The old one works for 24 more hours by default.
    """
    return keys.rotate(principal, key_id, body or KeyRotate())


@router.delete(f"{KEYS}/{{key_id}}", tags=["keys"])
def revoke_key(key_id: KeyId, principal: Admin, keys: KeysDep) -> KeyRead:
    """Revoke a key at once; needs the scope admin."""
    return keys.revoke(principal, key_id)


@router.get("/v1/tenants", tags=["keys"])
def list_tenants(principal: Admin, keys: KeysDep) -> TenantList:
    """All tenants with their keys, use and limits; needs the scope admin."""
    return TenantList(data=keys.tenants())


@router.post(SHARES, tags=["fine-tuning"])
def create_share(
    job_id: JobId,
    principal: Sharer,
    shares: SharesDep,
    request: Request,
    body: ShareCreate | None = None,
) -> ShareWithUrl:
    """Create a link to the job's page that may only read this job, its rollouts included, until it expires.

    Needs the scopes read and write. Only this response contains the link's secret.
    """
    return shares.create(principal, job_id, body or ShareCreate(), str(request.base_url))


@router.get(SHARES, tags=["fine-tuning"])
def list_shares(job_id: JobId, principal: Reader, shares: SharesDep) -> Page[ShareRead]:
    """Active links to the job, newest first, without their secrets."""
    found = shares.list(principal.tenant, job_id)
    return page_of(found, len(found))


@router.delete(f"{SHARES}/{{share_id}}", tags=["fine-tuning"])
def revoke_share(job_id: JobId, share_id: ShareId, principal: Writer, shares: SharesDep) -> ShareRevoked:
    """Revoke a link at once; its open live streams end too."""
    shares.revoke(principal, job_id, share_id)
    return ShareRevoked(id=share_id)
