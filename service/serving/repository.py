"""Queries about models that are wanted, loading or served, and about the workers that load them.

A worker's write names its fence and returns False if another worker has claimed the model since.
"""

from typing import Any, NamedTuple

from sqlalchemy import and_, delete, null, or_, select, update
from sqlalchemy.orm import Session

from service.jobs.model.states import HELD
from service.jobs.store.transitions import is_in
from service.platform.clock import db_now
from service.platform.db import insert_for
from service.platform.leases import QUIET, Leases
from service.platform.tables.core import Job
from service.platform.tables.serving import ChatWorker, ModelServer

LIVE_SECONDS = 15.0
"""A worker that has not reported for this long is not live."""
WANTED_SECONDS = 10.0
"""A model is loaded only if a request has waited for it during this time."""
KEPT_SECONDS = 1800.0
"""Age of rows to delete."""
LEASES = Leases(
    ModelServer,
    (ModelServer.key,),
    ModelServer.fence,
    ModelServer.lease_expires_at,
    active=ModelServer.lease_owner.is_not(None),
)
_IS_FREE = or_(ModelServer.lease_owner.is_(None), LEASES.has_expired)
_IS_WANTED = and_(
    _IS_FREE, ModelServer.refusal.is_(null()), ModelServer.wanted_at > db_now() - WANTED_SECONDS
)


class ServerState(NamedTuple):
    """The state of one model."""

    fence: int
    is_held: bool
    """Whether a worker loads or serves it."""
    address: str | None
    secret: str | None
    refusal: dict[str, Any] | None
    lease_expires_at: float | None

    @property
    def is_served(self) -> bool:
        return self.is_held and self.address is not None


class ClaimedModel(NamedTuple):
    key: str
    fence: int
    tenant: str
    model: str


def find(session: Session, key: str) -> ServerState | None:
    row = ModelServer
    columns = (row.fence, ~_IS_FREE, row.address, row.secret, row.refusal, row.lease_expires_at)
    found = session.execute(select(*columns).where(row.key == key)).one_or_none()
    return None if found is None else ServerState(*found)


def want(session: Session, key: str, tenant: str, model: str, *, is_new: bool) -> None:
    """Let a worker load the model unless one does. A new request clears the reason why the last server
    ended."""
    values = {"tenant": tenant, "model": model, "wanted_at": db_now()}
    insert = insert_for(session)(ModelServer).values(key=key, fence=0, **values)
    session.execute(insert.on_conflict_do_update(index_elements=["key"], set_=values))
    if is_new:
        free = update(ModelServer).where(ModelServer.key == key, ModelServer.lease_owner.is_(None))
        session.execute(free.values(refusal=null()), execution_options=QUIET)


def served(session: Session) -> list[tuple[str, str, str, str]]:
    """Model, worker, address and secret of each registered server."""
    columns = (ModelServer.model, ModelServer.lease_owner, ModelServer.address, ModelServer.secret)
    rows = session.execute(select(*columns).where(~_IS_FREE, ModelServer.address.is_not(None)))
    return [(model, str(worker), str(address), str(secret)) for model, worker, address, secret in rows]


def live_workers(session: Session) -> list[bool]:
    """For each live worker, whether its machine is training and therefore answers nothing.

    A worker reports the end of a job up to some seconds late, so its report counts only while a job runs.
    """
    fresh = select(ChatWorker.name, ChatWorker.is_training).where(
        ChatWorker.seen_at > db_now() - LIVE_SECONDS
    )
    owners = select(Job.lease_owner).where(is_in("jobs", *HELD), Job.lease_owner.is_not(None))
    training = {_host_of(str(owner)) for owner in session.scalars(owners)}
    return [is_training and _host_of(name) in training for name, is_training in session.execute(fresh)]


def _host_of(worker: str) -> str:
    """`host:pid` → `host`."""
    return worker.partition(":")[0]


def has_wanted(session: Session) -> bool:
    """Whether any model is wanted. This read is cheaper than a claim."""
    return session.scalar(select(ModelServer.key).where(_IS_WANTED).limit(1)) is not None


def claim(session: Session, worker: str, lease_seconds: float) -> ClaimedModel | None:
    """Claim the model that is wanted, if any."""
    wanted = select(ModelServer.key).where(_IS_WANTED).order_by(ModelServer.wanted_at)
    claiming = LEASES.claim(wanted, lease_seconds, lease_owner=worker, address=None, secret=None)
    row = ModelServer
    found = session.execute(
        claiming.returning(row.key, row.fence, row.tenant, row.model), execution_options=QUIET
    )
    first = found.one_or_none()
    return None if first is None else ClaimedModel(*first)


def register(session: Session, key: str, fence: int, address: str, secret: str) -> bool:
    """Store where the model is served."""
    return LEASES.write(session, key, number=fence, address=address, secret=secret)


def end(session: Session, key: str, fence: int, refusal: dict[str, Any] | None = None) -> None:
    """Release a model that is no longer served."""
    values = {"refusal": refusal, "wanted_at": db_now() - WANTED_SECONDS}
    values |= dict.fromkeys(("lease_owner", "lease_expires_at", "address", "secret"))
    LEASES.write(session, key, number=fence, **values)


def renew(session: Session, worker: str, lease_seconds: float) -> set[tuple[str, int]]:
    """Extend the leases of a worker; returns keys and fences of its models."""
    held = ModelServer.lease_owner == worker
    renewed = LEASES.renew(held, lease_seconds).returning(ModelServer.key, ModelServer.fence)
    return {(key, fence) for key, fence in session.execute(renewed, execution_options=QUIET)}


def announce(session: Session, name: str, *, is_training: bool) -> None:
    """Store that a worker is live, and delete old rows of any worker."""
    values = {"is_training": is_training, "seen_at": db_now()}
    row = insert_for(session)(ChatWorker).values(name=name, **values)
    session.execute(row.on_conflict_do_update(index_elements=["name"], set_=values))
    session.execute(delete(ChatWorker).where(ChatWorker.seen_at < db_now() - KEPT_SECONDS))
    is_old = ModelServer.wanted_at < db_now() - KEPT_SECONDS
    session.execute(delete(ModelServer).where(is_old, _IS_FREE), execution_options=QUIET)


def leave(session: Session, name: str) -> None:
    """Remove the row of a worker that stops."""
    session.execute(delete(ChatWorker).where(ChatWorker.name == name))


def trains_on(session: Session, host: str) -> bool:
    """Whether a worker of this machine holds a job."""
    here = Job.lease_owner.startswith(f"{host}:", autoescape=True)
    return session.scalar(select(Job.id).where(is_in("jobs", *HELD), here).limit(1)) is not None
