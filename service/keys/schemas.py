"""Bodies of the endpoints of keys, shares and tenants. Only the response to a creation has a secret."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from service.web.auth import MAX_NAME_LENGTH, MAX_OLD_KEY_HOURS, OLD_KEY_HOURS, TENANT_PATTERN, checked_name
from service.web.validation import RequestBody, UnixSeconds

DAY = 24 * 3600
MAX_SHARE_SECONDS = 90 * DAY
MAX_KEY_SECONDS = 36_500 * DAY
Tenant = Annotated[str, StringConstraints(pattern=f"^{TENANT_PATTERN.pattern}$")]
KeyName = Annotated[str, StringConstraints(max_length=MAX_NAME_LENGTH), AfterValidator(checked_name)]


class KeyRead(BaseModel):
    """A key without its secret."""

    model_config = ConfigDict(from_attributes=True)
    object: Literal["api_key"] = "api_key"
    id: str
    """Public part of the key."""
    tenant: str
    name: str
    scopes: list[str]
    """Empty for the key of a shared link."""
    job_id: str | None
    """The only job that the key of a shared link may read."""
    created_at: UnixSeconds
    expires_at: UnixSeconds | None
    revoked_at: UnixSeconds | None
    last_used_at: UnixSeconds | None
    """A minute in which the key was used, written at most once in 5 minutes; null: not used yet."""


class KeyWithSecret(KeyRead):
    key: str
    """The whole key; no other response contains it."""


class KeyCreate(RequestBody):
    """Body of `POST /v1/keys`. Admin keys are created by `grpo keys create --admin` only."""

    tenant: Tenant
    """Tenant of the key; a new name is a new tenant."""
    name: KeyName = ""
    """What the key is for."""
    scopes: list[Literal["read", "write"]] = Field(["read", "write"], min_length=1, max_length=2)
    """What the key may do."""
    expires_in_seconds: int | None = Field(None, ge=1, le=MAX_KEY_SECONDS)
    """Seconds until the key expires; null: never."""


class KeyRotate(RequestBody):
    """Body of `POST /v1/keys/{id}/rotate`."""

    old_key_hours: int = Field(OLD_KEY_HOURS, ge=0, le=MAX_OLD_KEY_HOURS)
    """Hours for which the old key still works; 0: it is revoked at once."""


class ShareCreate(RequestBody):
    """Body of `POST /v1/fine_tuning/jobs/{id}/shares`."""

    expires_in_seconds: int = Field(7 * DAY, ge=1, le=MAX_SHARE_SECONDS)
    """Seconds until the link expires, at most 90 days."""


class ShareRead(BaseModel):
    """A link that may read one job, without its secret."""

    model_config = ConfigDict(from_attributes=True)
    object: Literal["fine_tuning.job.share"] = "fine_tuning.job.share"
    id: str
    created_at: UnixSeconds
    expires_at: UnixSeconds


class ShareWithUrl(ShareRead):
    url: str
    """Address of the job's page. The part after `#` contains the secret, which no other response shows."""


class ShareRevoked(BaseModel):
    object: Literal["fine_tuning.job.share.deleted"] = "fine_tuning.job.share.deleted"
    id: str
    deleted: Literal[True] = True


class TenantLimits(BaseModel):
    """The deployment's limits, the same for all tenants; null: no limit."""

    unfinished_jobs: int
    running_jobs: int | None
    stored_bytes: int | None
    requests_per_second: float | None


class TenantRead(BaseModel):
    """A tenant and what it uses."""

    object: Literal["tenant"] = "tenant"
    id: str
    num_keys: int
    """Keys that are neither revoked nor expired, without shares."""
    unfinished_jobs: int
    stored_bytes: int
    limits: TenantLimits


class TenantList(BaseModel):
    object: Literal["list"] = "list"
    data: list[TenantRead]
