"""What a job needs of the machine that runs it, and which machines offer it. Fail closed.

Untrusted code runs only where a self-test has attacked the sandbox and found that it holds. Workers say what
their machine offers; a job that none of them could run is refused when it is submitted, and a worker never
claims a job that its machine cannot run.
Boundary: names of capabilities, and the table of machines; the self-test is `grpo_engine.sandbox`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain, combinations
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from grpo_engine.sandbox import SandboxUnavailable, monty, self_test
from service.clock import db_now
from service.jobs.dataset import Problems
from service.jobs.method_parts import rules_of, settings_of
from service.models import WorkerHost
from service.settings import Settings

SANDBOX = "sandbox"
"""bubblewrap holds: code of models may run."""
PYTHON_GRADERS = "python_graders"
"""The sandbox, or pydantic-monty's subset of Python: graders of users may run."""
KNOWN_SECONDS = 3600.0
"""A machine that has said nothing for so long is not counted on."""
_NEEDS = {"python": PYTHON_GRADERS, "code_tests": SANDBOX}

Capabilities = frozenset[str]


def of_this_machine() -> Capabilities:
    """Found out once a process, in about 0.1 s."""
    found = {SANDBOX, PYTHON_GRADERS} if self_test().available else set()
    return frozenset(found | ({PYTHON_GRADERS} if monty.installed() else set()))


def needs_of(method: Any) -> list[tuple[str, str]]:
    """Place and capability of each part of a method that runs untrusted code."""
    found = [(where, _NEEDS[rule.type]) for where, rule in rules_of(method) if rule.type in _NEEDS]
    tools = getattr(settings_of(method), "tools", ())
    places = enumerate(tools)
    return found + [
        (f"method.{method.type}.tools[{n}]", SANDBOX) for n, tool in places if tool.type == "python"
    ]


def required_by(method: Any) -> Capabilities:
    return frozenset(needed for _, needed in needs_of(method))


def as_text(capabilities: Iterable[str]) -> str:
    """As it stands in a row: sorted, parted by spaces."""
    return " ".join(sorted(capabilities))


def satisfied_by(capabilities: Collection[str]) -> list[str]:
    """`as_text` of every requirement that these capabilities meet: an index can find them."""
    names = sorted(capabilities)
    subsets = (combinations(names, size) for size in range(len(names) + 1))
    return [as_text(subset) for subset in chain.from_iterable(subsets)]


def announce(session: Session, host: str, pool: str, capabilities: Iterable[str]) -> None:
    """A machine with a worker of this pool says what it offers; those long silent are forgotten."""
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    said = {"capabilities": as_text(capabilities), "seen_at": db_now()}
    row = insert(WorkerHost).values(host=host, pool=pool, **said)
    session.execute(row.on_conflict_do_update(index_elements=["host", "pool"], set_=said))
    session.execute(delete(WorkerHost).where(WorkerHost.seen_at < db_now() - KNOWN_SECONDS))


def announced(session: Session, pool: str) -> list[Capabilities]:
    """What each known machine of a pool offers; empty where none is known."""
    fresh = WorkerHost.seen_at >= db_now() - KNOWN_SECONDS
    rows = session.scalars(select(WorkerHost.capabilities).where(WorkerHost.pool == pool, fresh))
    return [frozenset(text.split()) for text in rows]


def check_capabilities(
    method: Any, hosts: list[Capabilities], settings: Settings, problems: Problems
) -> None:
    """A problem at each part that no machine can run; also at graders beyond the subset that there is.

    Embedded, the worker runs on this machine; else `hosts` are `announced`, and where none is known the job
    may wait for one.
    """
    needs = needs_of(method)
    if not needs:
        return
    if settings.mode == "embedded":
        hosts = [of_this_machine()]
    required = frozenset(needed for _, needed in needs)
    if not hosts or any(required | {SANDBOX} <= host for host in hosts):
        return
    able = any(required <= host for host in hosts)
    for where, needed in needs:
        if not able and not any(needed in host for host in hosts):
            reason = "it runs untrusted code, and no worker has a sandbox that holds (bubblewrap)"
            problems.add(where, reason, code="sandbox_unavailable")
    if able and monty.installed():
        _check_subset(method, problems)


def _check_subset(method: Any, problems: Problems) -> None:
    """Without bubblewrap python graders run in a subset of the language."""
    for where, rule in rules_of(method):
        if rule.type != "python":
            continue
        try:
            found = monty.subset_problems(rule.source)
        except SandboxUnavailable as error:
            problems.add(where, str(error), code="sandbox_unavailable")
            continue
        for reason in found:
            shown = f"there is no sandbox here but a subset of Python: {reason[-500:]}"
            problems.add(f"{where}.source", shown, code="invalid_grader")
