"""What a job needs of the machine that runs it, and which machines offer it. Fail closed.

Untrusted code runs only where a self-test has attacked the sandbox and found that it holds. Workers say what
their machine offers; a job that none of them could run is refused when it is submitted, and a worker never
claims a job that its machine cannot run. An operator may let machines without a sandbox run such code for the
only tenant there is (GRPO_UNSAFE_GRADERS): they say so, and every job that they touch is marked.
Boundary: names of capabilities, and the table of machines; the self-test is `grpo_engine.sandbox`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from itertools import chain, combinations

import structlog
from sqlalchemy import bindparam, delete, distinct, func, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from grpo_engine.sandbox import monty, self_test, unsafe
from service.jobs.store import history
from service.jobs.store.sink_packages import installed_sinks
from service.platform.clock import db_now
from service.platform.tables.core import ApiKey, Job, WorkerHost
from service.settings import Settings

logger = structlog.get_logger()

SANDBOX = "sandbox"
"""bubblewrap holds: code of models may run."""
PYTHON_GRADERS = "python_graders"
"""The sandbox, or pydantic-monty's subset of Python: graders of users may run."""
UNSAFE = "unsafe_graders"
"""There is no sandbox, and the operator lets untrusted code run all the same, for one tenant."""
UNSAFE_WARNING = {
    "code": "unsafe_graders",
    "message": "A worker without a sandbox may run the job's untrusted code: GRPO_UNSAFE_GRADERS is set.",
}
KNOWN_SECONDS = 3600.0
"""A machine that has said nothing for so long is not counted on."""
_ANNOUNCED = select(WorkerHost).where(
    WorkerHost.pool == bindparam("of_pool"), WorkerHost.seen_at >= db_now() - KNOWN_SECONDS
)

Capabilities = frozenset[str]


@dataclass(frozen=True, slots=True)
class Machine:
    """What a machine offers the jobs that run on it, one at a time."""

    capabilities: Capabilities
    gpus: int = 0


def of_this_machine(*, unsafe_allowed: bool = False) -> Capabilities:
    """Found out once a process, in about half a second."""
    found = {SANDBOX, PYTHON_GRADERS} if self_test().available else set()
    if not found and unsafe_allowed and unsafe.plain_interpreter() is not None:
        found = {SANDBOX, PYTHON_GRADERS, UNSAFE}
    return frozenset(found | ({PYTHON_GRADERS} if monty.installed() else set()))


def num_tenants(session: Session) -> int:
    """Tenants with a key that is not revoked."""
    count = select(func.count(distinct(ApiKey.tenant))).where(ApiKey.revoked_at.is_(None))
    return session.execute(count).scalar_one()


def offered_to(session: Session, offered: Capabilities) -> Capabilities:
    """Of what a machine offers, what it may: without a sandbox nothing where there are several tenants."""
    return frozenset() if UNSAFE in offered and num_tenants(session) > 1 else offered


def tell_of_sandbox(settings: Settings) -> None:
    """In the log, when a worker starts: what untrusted code would meet here."""
    found = self_test()
    if found.available:
        logger.info("the sandbox holds", probes=len(found.probes))
    elif UNSAFE in of_this_machine(unsafe_allowed=settings.allows_unsafe):
        logger.warning("UNSAFE: untrusted code runs here without a sandbox", reason=found.reason)
    else:
        logger.warning("no sandbox: jobs with untrusted code are left for others", reason=found.reason)


def as_text(capabilities: Iterable[str]) -> str:
    """As it stands in a row: sorted, parted by spaces."""
    return " ".join(sorted(capabilities))


def satisfied_by(capabilities: Collection[str]) -> list[str]:
    """`as_text` of every requirement that these capabilities meet: an index can find them."""
    names = sorted(capabilities)
    subsets = (combinations(names, size) for size in range(len(names) + 1))
    return [as_text(subset) for subset in chain.from_iterable(subsets)]


def announce(session: Session, host: str, pool: str, machine: Machine) -> None:
    """A machine with a worker of this pool says what it offers; those long silent are forgotten."""
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    offered = {"capabilities": as_text(machine.capabilities), "gpus": machine.gpus}
    said = {**offered, "seen_at": db_now()}
    row = insert(WorkerHost).values(host=host, pool=pool, **said)
    session.execute(row.on_conflict_do_update(index_elements=["host", "pool"], set_=said))
    session.execute(delete(WorkerHost).where(WorkerHost.seen_at < db_now() - KNOWN_SECONDS))


def announced(session: Session, pool: str) -> list[Machine]:
    """The known machines of a pool."""
    rows = session.scalars(_ANNOUNCED, {"of_pool": pool})
    return [Machine(frozenset(row.capabilities.split()), row.gpus) for row in rows]


def record_unsafe_run(session: Session, job_id: str, fence: int) -> bool:
    """Mark a job that a machine without a sandbox starts to run. False: the fence is stale."""
    mine = (Job.id == job_id, Job.fence == fence)
    found = session.execute(select(Job.warnings).where(*mine).with_for_update()).scalar_one_or_none()
    if found is None:
        return False
    if UNSAFE_WARNING not in found:
        marked = update(Job).where(*mine).values(warnings=[*found, UNSAFE_WARNING])
        session.execute(marked.execution_options(synchronize_session=False))
    entry = history.Entry("message", UNSAFE_WARNING["message"], "warn", {"code": UNSAFE}, fence)
    history.append(session, job_id, entry)
    return True


def known_machines(session: Session, settings: Settings) -> list[Machine]:
    """Those that may run a job: embedded, this one. Where none is known the job may wait for one."""
    if settings.mode == "embedded":
        offered = of_this_machine(unsafe_allowed=settings.allows_unsafe) | installed_sinks()
        found = [Machine(offered, settings.gpus)]
    else:
        found = announced(session, settings.pool)
    return [replace(machine, capabilities=offered_to(session, machine.capabilities)) for machine in found]
