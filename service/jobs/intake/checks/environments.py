"""Checks a job's environments: that rows and environments name each other, and that each server works.

Each OpenEnv server must return its health and its schema, and one session is reset with the
arguments of the first row that names it, and closed. An agent only has to respond.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from grpo_engine.config.environments import AgentEnvironment, Environment, OpenEnvEnvironment
from grpo_engine.outbound.addresses import RefusedUrl
from grpo_engine.outbound.openenv import (
    EnvironmentFailure,
    Observation,
    action_schema,
    check_health,
    open_session,
)
from grpo_engine.outbound.web import NoAnswer, get
from service.jobs.intake.report import Report
from service.jobs.model.dataset import Problems, Row
from service.jobs.model.methods import environments_of

TRIAL_SECONDS = 10.0
"""Maximum seconds of each request of the trial."""
TRIAL_SEED = 7
Resets = dict[str, dict[str, Any]]
"""Environment → `reset` of the first row that names it."""


def check_environments(report: Report, resets: Resets) -> None:
    """Adds a problem for each environment whose server cannot be used."""
    environments = environments_of(report.method)
    if not environments:
        return
    with ThreadPoolExecutor(len(environments), thread_name_prefix="environment") as pool:
        reasons = pool.map(_fault, environments.values(), [resets.get(name, {}) for name in environments])
        for name, reason in zip(environments, reasons, strict=True):
            if reason:
                where = f"method.{report.method.type}.environments.{name}.url"
                report.problems.add(where, reason, code="environment_unreachable")


def _fault(options: Environment, reset: Mapping[str, Any]) -> str:
    """Why the server cannot be used; empty if it can. `reset`: arguments of a row."""
    seconds = min(options.timeout_seconds, TRIAL_SECONDS)
    try:
        if isinstance(options, AgentEnvironment):
            get(options.url, timeout_seconds=seconds)  # any answer will do; a trial would start its work
            return ""
        check_health(options.url, timeout_seconds=seconds)
        action_schema(options.url, timeout_seconds=seconds)
        first = asyncio.run(_first_observation(options, reset, seconds))
    except (EnvironmentFailure, NoAnswer, RefusedUrl) as error:
        return str(error)
    return "reset ends the episode, before the model can act" if first.done else ""


async def _first_observation(
    options: OpenEnvEnvironment, reset: Mapping[str, Any], seconds: float
) -> Observation:
    arguments = {"seed": TRIAL_SEED, **options.reset, **reset}
    session, first = await open_session(options.url, arguments, timeout_seconds=seconds)
    await session.close()
    return first


def watch_environments(
    report: Report, rows: Iterable[Row], file: str, resets: Resets, *, is_training: bool
) -> Iterator[Row]:
    """Yields the rows unchanged. Adds a problem for each row without an environment of the job, and for
    each environment that no training row names; adds to `resets`."""
    environments = environments_of(report.method)
    unused = set(environments)
    for row in rows:
        if environments:
            _check_row(row, environments, f"{file}[{row.line}]", report.problems)
            name, reset = str(row.item.get("environment")), row.item.get("reset")
            unused.discard(name)
            resets.setdefault(name, reset if isinstance(reset, dict) else {})
        yield row
    for name in sorted(unused) if is_training else ():
        where = f"method.{report.method.type}.environments.{name}"
        report.problems.add(where, f"no row of {file} names this environment", code="unused_environment")


def _check_row(row: Row, environments: Mapping[str, Environment], place: str, problems: Problems) -> None:
    name, reset = row.item.get("environment"), row.item.get("reset")
    if not isinstance(name, str) or name not in environments:
        advice = "train such rows in a job without environments" if name is None else "correct the name"
        reason = f"must be one of the job's environments ({', '.join(environments)}): {advice}"
        problems.add(f"{place}.environment", reason, code="unknown_environment")
    if not (reset is None or isinstance(reset, dict)):
        problems.add(f"{place}.reset", "must be an object: the arguments of reset", code="invalid_value")
