"""The machines of a deployment and their capabilities.

Untrusted code runs only on machines whose sandbox has passed its self-test. Workers report the capabilities
of their machine; a job that none of them can run is refused at submit, and a worker never claims a job that
its machine cannot run. An operator may let machines without a sandbox run untrusted code for a single tenant
(GRPO_UNSAFE_GRADERS); every such job is marked.
Boundary: packages of sinks are looked up, never imported: that costs seconds and hundreds of megabytes.
"""

import os
import subprocess
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from itertools import chain, combinations
from pathlib import Path
from typing import Any, Self

import structlog
from sqlalchemy import bindparam, delete, distinct, func, select
from sqlalchemy.orm import Session

from grpo_engine.config import mcp_tools
from grpo_engine.process.gpus import count_visible_gpus, smallest_memory_gb
from grpo_engine.sandbox import monty, self_test, unsafe
from service.jobs.store import formats, history
from service.platform.clock import db_now
from service.platform.db import insert_for
from service.platform.tables.core import ApiKey, Job
from service.platform.tables.workers import WorkerHost
from service.settings import Settings

logger = structlog.get_logger()

SANDBOX = "sandbox"
"""bubblewrap works: code written by models may run."""
PYTHON_GRADERS = "python_graders"
"""The sandbox works, or pydantic-monty can run its subset of Python: graders written by users may run."""
REASONING_GYM = "reasoning_gym"
"""Code written by models may run, and the engine's environment has Reasoning Gym: its tasks can be scored."""
MCP = "mcp"
"""The package `mcp` is installed: jobs may use the tools of MCP servers."""
UNSAFE = "unsafe_graders"
"""There is no sandbox, but the operator allows untrusted code of a single tenant."""
CLUSTER = "cluster"
"""The machine is a Ray cluster: a job may request a number of hosts."""
HOSTS = "hosts:"
"""Prefix of a cluster's number of hosts; machines announce it, jobs do not require it."""
UNSAFE_WARNING = {
    "code": "unsafe_graders",
    "message": "A worker without a sandbox may run the job's untrusted code: GRPO_UNSAFE_GRADERS is set.",
}
KNOWN_SECONDS = 3600.0
"""A machine that has not reported for longer is deleted."""
_RECENT = select(WorkerHost).where(
    WorkerHost.pool == bindparam("of_pool"), WorkerHost.seen_at >= db_now() - KNOWN_SECONDS
)
SINK_PACKAGES = {"wandb": "wandb", "tensorboard": "tensorboard", "mlflow": "mlflow"}
"""Sink → its package. The extra of `grpo-service` that installs it has the sink's name."""

Capabilities = frozenset[str]


@dataclass(frozen=True, slots=True)
class Machine:
    """Capabilities and GPUs that a machine offers to a job."""

    capabilities: Capabilities
    gpus: int = 0
    gpu_memory_gb: int = 0
    """Memory of its smallest GPU, in units of 10^9 bytes."""

    @classmethod
    def of_row(cls, capabilities: str, gpus: int, gpu_memory_gb: int) -> Self:
        """The machine that a row of `jobs` or `worker_hosts` requires or offers."""
        return cls(frozenset(capabilities.split()), gpus, gpu_memory_gb)

    @property
    def hosts(self) -> int:
        """Number of hosts among which a job's GPUs can be divided."""
        numbers = (int(name.removeprefix(HOSTS)) for name in self.capabilities if name.startswith(HOSTS))
        return max(numbers, default=1)

    def meets(self, need: Self) -> bool:
        """Whether it has at least the capabilities and GPUs of `need`."""
        has_gpus = need.gpus <= self.gpus and need.gpu_memory_gb <= self.gpu_memory_gb
        return need.capabilities <= self.capabilities and has_gpus


def of_this_machine(
    *, unsafe_allowed: bool = False, engine_python: Path = Path(sys.executable)
) -> Capabilities:
    """The capabilities of this machine, determined once per process in about half a second."""
    found = {SANDBOX, PYTHON_GRADERS} if self_test().available else set()
    if not found and unsafe_allowed and unsafe.plain_interpreter() is not None:
        found = {SANDBOX, PYTHON_GRADERS, UNSAFE}
    if found and _has_reasoning_gym(engine_python):
        found.add(REASONING_GYM)
    found |= {MCP} if mcp_tools.is_installed() else set()
    return frozenset(found | ({PYTHON_GRADERS} if monty.installed() else set()))


@cache
def _has_reasoning_gym(python: Path) -> bool:
    """Whether the package is installed in this interpreter's environment; it is not imported."""
    if python == Path(sys.executable):
        return find_spec("reasoning_gym") is not None
    code = "import sys, importlib.util; sys.exit(importlib.util.find_spec('reasoning_gym') is None)"
    try:
        return subprocess.run([python, "-P", "-c", code], timeout=30, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def gpus_for_a_job(settings: Settings) -> int:
    """How many of this machine's GPUs one job can use: at most one without Ray."""
    return settings.gpus if find_spec("ray") else min(1, settings.gpus)


@cache
def _listed_gpu_memory_gb() -> int:
    return smallest_memory_gb(os.environ) if count_visible_gpus(os.environ) else 0


def gpu_memory_gb(settings: Settings) -> int:
    """Memory of this machine's smallest GPU, from the settings or as nvidia-smi lists it."""
    return _listed_gpu_memory_gb() if settings.gpu_memory_gb is None else settings.gpu_memory_gb


def this_machine(settings: Settings) -> Machine:
    """What a job can use of this machine, without the sinks."""
    offered = of_this_machine(unsafe_allowed=settings.allows_unsafe, engine_python=settings.engine_python)
    return Machine(offered, gpus_for_a_job(settings), gpu_memory_gb(settings))


def offered_to(session: Session, offered: Capabilities) -> Capabilities:
    """The capabilities that jobs may use: none if there are several tenants and no sandbox."""
    num_tenants = select(func.count(distinct(ApiKey.tenant))).where(ApiKey.revoked_at.is_(None))
    return frozenset() if UNSAFE in offered and session.scalars(num_tenants).one() > 1 else offered


def log_sandbox_state(settings: Settings) -> None:
    """Log, when a worker starts, how untrusted code runs here."""
    found = self_test()
    if found.available:
        logger.info("the sandbox works", attacks=len(found.attacks))
    elif UNSAFE in of_this_machine(unsafe_allowed=settings.allows_unsafe):
        logger.warning("UNSAFE: untrusted code runs here without a sandbox", reason=found.reason)
    else:
        logger.warning("no sandbox: jobs with untrusted code are left for others", reason=found.reason)


def as_text(capabilities: Iterable[str]) -> str:
    """The form in a row: sorted, separated by spaces."""
    return " ".join(sorted(capabilities))


def satisfied_by(capabilities: Collection[str]) -> list[str]:
    """`as_text` of every requirement that a worker of this version with these capabilities meets."""
    names = sorted(capabilities)
    subsets = list(chain.from_iterable(combinations(names, size) for size in range(len(names) + 1)))
    of_format = [(), *((name,) for name in formats.UNDERSTOOD)]  # a job requires at most one
    return [as_text((*subset, *one)) for subset in subsets for one in of_format]


def announce(session: Session, host: str, pool: str, machine: Machine) -> None:
    """Store what a machine with a worker of this pool offers, and delete machines that no longer report."""
    capabilities = as_text(machine.capabilities | formats.UNDERSTOOD)
    offered: dict[str, Any] = {"capabilities": capabilities, "gpus": machine.gpus}
    offered |= {"gpu_memory_gb": machine.gpu_memory_gb, "seen_at": db_now()}
    row = insert_for(session)(WorkerHost).values(host=host, pool=pool, **offered)
    session.execute(row.on_conflict_do_update(index_elements=["host", "pool"], set_=offered))
    session.execute(delete(WorkerHost).where(WorkerHost.seen_at < db_now() - KNOWN_SECONDS))


def recent_machines(session: Session, pool: str) -> list[Machine]:
    """The machines of a pool that reported within the last hour."""
    rows = session.scalars(_RECENT, {"of_pool": pool})
    return [Machine.of_row(row.capabilities, row.gpus, row.gpu_memory_gb) for row in rows]


def record_unsafe_run(session: Session, job_id: str, fence: int) -> bool:
    """Mark a job that a machine without a sandbox starts to run. False: the fence is stale."""
    row = session.scalar(select(Job).where(Job.id == job_id, Job.fence == fence).with_for_update())
    if row is None:
        return False
    if UNSAFE_WARNING not in row.warnings:
        row.warnings = [*row.warnings, UNSAFE_WARNING]
        session.flush()
    entry = history.HistoryEntry("message", UNSAFE_WARNING["message"], "warn", {"code": UNSAFE}, fence)
    history.append(session, job_id, entry)
    return True


def known_machines(session: Session, settings: Settings) -> list[Machine]:
    """Machines that may run a job; in embedded mode, this one. If there is none, the job waits for one."""
    found = recent_machines(session, settings.pool)
    if settings.mode == "embedded" and settings.launcher == "local":
        own = this_machine(settings)
        found = [replace(own, capabilities=own.capabilities | installed_sinks())]
    return [replace(machine, capabilities=offered_to(session, machine.capabilities)) for machine in found]


@cache
def installed_sinks() -> Capabilities:
    """Capabilities of the metric sinks whose libraries are installed, such as `sink:wandb`."""
    return frozenset(f"sink:{kind}" for kind, package in SINK_PACKAGES.items() if find_spec(package))


def install_hint(extra: str) -> str:
    """How to install the extra of that name, such as a sink's package, on a worker."""
    return f"install it there: pip install 'grpo-service[{extra}]'"
