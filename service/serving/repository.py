"""Queries about requests to models: the API stores and reads them, a worker answers them.

A worker's write names its fence and returns False if the request was closed or another worker holds it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, delete, func, or_, select
from sqlalchemy.orm import Session

from service.jobs.model.states import HELD
from service.jobs.store.transitions import is_in
from service.platform.clock import db_now
from service.platform.db import insert_for
from service.platform.leases import QUIET, Leases
from service.platform.tables.core import Job
from service.platform.tables.serving import ChatWorker, Generation, GenerationChunk, GenerationState

LIVE_SECONDS = 15.0
"""A worker that has not reported for this long is not live."""
KEPT_SECONDS = 1800.0
"""Age of rows to delete: no one reads older ones, because the API process that stored them has ended."""
_IS_WAITING = Generation.state == GenerationState.WAITING.value
_IS_GENERATING = Generation.state == GenerationState.GENERATING.value
LEASES = Leases(
    Generation, (Generation.id,), Generation.fence, Generation.lease_expires_at, active=_IS_GENERATING
)


@dataclass(frozen=True)
class Head:
    """The state of a request, without its chunks."""

    state: GenerationState
    num_chunks: int
    usage: dict[str, Any] | None
    refusal: dict[str, Any] | None
    is_lost: bool
    """Whether its worker has stopped renewing the lease."""


def live_workers(session: Session) -> list[bool]:
    """For each live worker, whether its machine is training and therefore answers nothing."""
    fresh = ChatWorker.seen_at > db_now() - LIVE_SECONDS
    return list(session.scalars(select(ChatWorker.is_training).where(fresh)))


def num_open(session: Session, tenant: str) -> int:
    """Requests of a tenant that are waiting or being answered."""
    query = select(func.count()).where(Generation.tenant == tenant, or_(_IS_WAITING, _IS_GENERATING))
    return session.execute(query).scalar_one()


def heads(session: Session, ids: Sequence[str]) -> dict[str, Head]:
    """The existing requests, by id."""
    columns = (Generation.state, Generation.num_chunks, Generation.usage, Generation.refusal)
    rows = session.execute(select(Generation.id, *columns, LEASES.has_expired).where(Generation.id.in_(ids)))
    return {id: Head(GenerationState(state), *rest) for id, state, *rest in rows}


def chunks_after(session: Session, seen: Mapping[str, int]) -> dict[str, list[GenerationChunk]]:
    """Each request's chunks after the number that was seen, in order."""
    chunk = GenerationChunk
    newer = [and_(chunk.generation_id == id, chunk.sequence > number) for id, number in seen.items()]
    found: dict[str, list[GenerationChunk]] = {}
    for row in session.scalars(select(chunk).where(or_(*newer)).order_by(chunk.sequence)):
        found.setdefault(row.generation_id, []).append(row)
    return found


def forget(session: Session, ids: Sequence[str]) -> None:
    """Delete closed requests. A worker that still answers one then stops, because it has no row to write."""
    session.execute(delete(Generation).where(Generation.id.in_(ids)), execution_options=QUIET)


def has_waiting(session: Session) -> bool:
    """Whether any request is waiting. This read is cheaper than a claim."""
    return session.scalar(select(Generation.id).where(_IS_WAITING).limit(1)) is not None


def claim(
    session: Session, worker: str, lease_seconds: float, models: Collection[str] | None = None
) -> Generation | None:
    """Claim the request that has waited longest (for one of these models), if any."""
    waiting = select(Generation.id).where(_IS_WAITING).order_by(Generation.created_at)
    if models is not None:
        waiting = waiting.where(Generation.model.in_(models))
    state = GenerationState.GENERATING.value
    claiming = LEASES.claim(waiting, lease_seconds, state=state, lease_owner=worker).returning(Generation)
    return session.scalar(claiming, execution_options=QUIET)


def add_chunk(session: Session, id: str, fence: int, sequence: int, pieces: list[dict[str, Any]]) -> bool:
    """Store a chunk; a repetition changes nothing. False: the request was closed or claimed again."""
    if not LEASES.write(session, id, number=fence, num_chunks=sequence):
        return False
    insert = insert_for(session)(GenerationChunk).values(generation_id=id, sequence=sequence, pieces=pieces)
    session.execute(insert.on_conflict_do_nothing())
    return True


def finish(session: Session, id: str, fence: int, usage: dict[str, Any]) -> bool:
    return LEASES.write(session, id, number=fence, state=GenerationState.DONE.value, usage=usage)


def fail(session: Session, id: str, fence: int, refusal: dict[str, Any]) -> bool:
    return LEASES.write(session, id, number=fence, state=GenerationState.FAILED.value, refusal=refusal)


def renew(session: Session, worker: str, lease_seconds: float) -> set[tuple[str, int]]:
    """Extend the leases of a worker; returns ids and fences of the requests that are still open."""
    held = and_(Generation.lease_owner == worker, LEASES.active)
    renewed = LEASES.renew(held, lease_seconds).returning(Generation.id, Generation.fence)
    return {(id, fence) for id, fence in session.execute(renewed, execution_options=QUIET)}


def announce(session: Session, name: str, *, is_training: bool) -> None:
    """Store that a worker is live, and delete old rows of any worker."""
    values = {"is_training": is_training, "seen_at": db_now()}
    row = insert_for(session)(ChatWorker).values(name=name, **values)
    session.execute(row.on_conflict_do_update(index_elements=["name"], set_=values))
    session.execute(delete(ChatWorker).where(ChatWorker.seen_at < db_now() - KEPT_SECONDS))
    session.execute(delete(Generation).where(Generation.created_at < db_now() - KEPT_SECONDS))


def leave(session: Session, name: str) -> None:
    """Remove the row of a worker that stops."""
    session.execute(delete(ChatWorker).where(ChatWorker.name == name))


def trains_on(session: Session, host: str) -> bool:
    """Whether a worker of this machine holds a job."""
    here = Job.lease_owner.startswith(f"{host}:", autoescape=True)
    return session.scalar(select(Job.id).where(is_in("jobs", *HELD), here).limit(1)) is not None
