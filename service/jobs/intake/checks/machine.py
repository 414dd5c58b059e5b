"""The requirements of a job on its machine, and the problems if no machine meets them."""

from collections.abc import Iterable

from grpo_engine.config.job import Method, Reinforcement, TrainingFree
from grpo_engine.sandbox import SandboxUnavailable, monty
from service.jobs.intake.report import Report
from service.jobs.model.dataset import Problems
from service.jobs.model.methods import rules_of, tools_of
from service.jobs.model.resources import Resources
from service.jobs.store.machines import (
    CLUSTER,
    MCP,
    PYTHON_GRADERS,
    REASONING_GYM,
    SANDBOX,
    UNSAFE,
    UNSAFE_WARNING,
    Capabilities,
    Machine,
    install_hint,
)
from service.suites.models import INSTALL

_NEEDS = {"python": PYTHON_GRADERS, "code_tests": SANDBOX, "reasoning_gym": REASONING_GYM}
_TOOL_NEEDS = {"python": SANDBOX, "mcp": MCP}
_NO_SANDBOX = (
    "needs a sandbox for untrusted code, and no worker has a working one: see the workers' logs",
    "sandbox_unavailable",
)
_MISSING = {
    REASONING_GYM: (
        f"no worker has both a working sandbox and Reasoning Gym in its engine's environment: {INSTALL}",
        "reasoning_gym_missing",
    ),
    MCP: (
        f"no worker has the package mcp; {install_hint('mcp')}",
        "mcp_unavailable",
    ),
}
"""Capability → reason and code for a part that needs it where no worker has it."""


def needs_of(method: Method) -> list[tuple[str, str]]:
    """For each part of a method that not every machine can run: its place, and the capability that it
    needs."""
    found = [(where, _NEEDS[rule.type]) for where, rule in rules_of(method) if rule.type in _NEEDS]
    places = enumerate(tools_of(method))
    return found + [
        (f"method.{method.type}.tools[{n}]", _TOOL_NEEDS[tool.type])
        for n, tool in places
        if tool.type in _TOOL_NEEDS
    ]


def required_by(method: Method, resources: Resources) -> Capabilities:
    needed = {needed for _, needed in needs_of(method)}
    return frozenset(needed | ({CLUSTER} if resources.hosts > 1 else set()))


def check_gpus(report: Report, resources: Resources, machines: list[Machine]) -> None:
    """Adds a problem if no suitable machine has the GPUs; warns of limits that apply to each GPU."""
    gpus, method = resources.gpus, report.method
    _check_division(resources, machines, report.problems)
    _check_samplers(report, resources)
    required = frozenset(needed for _, needed in needs_of(method))
    able = [machine for machine in machines if required <= machine.capabilities] or machines
    _check_largest(report, resources, able)
    if gpus > 1 and isinstance(method, TrainingFree):
        report.problems.add("resources.gpus", "must be at most 1: a training-free job trains no weights")
    for where, rule in rules_of(method) if gpus > 1 else ():
        if getattr(rule, "max_calls", None) or getattr(rule, "max_cost_usd", None):
            message = f"{where}: the limit of calls or cost applies to each of the {gpus} GPUs separately."
            report.warn("limit_on_each_gpu", message)


def _check_largest(report: Report, resources: Resources, able: list[Machine]) -> None:
    """Adds a problem if none of the machines has the GPUs, or GPUs with the memory."""
    least = resources.least_gpus
    most = max((machine.gpus for machine in able), default=resources.gpus)
    if most < least:
        requested = "1 GPU is requested" if least == 1 else f"{least} GPUs are requested"
        reason = f"{requested}; the largest worker that can run the job has {most}"
        report.problems.add("resources.gpus", reason, code="gpus_unavailable")
    elif most < resources.all_gpus:
        total = resources.all_gpus
        message = f"The job will run with at most {most} of its {total} GPUs: no worker has more."
        report.warn("fewer_gpus", message)
    enough = [machine for machine in able if machine.gpus >= least] or able
    memory = max((machine.gpu_memory_gb for machine in enough), default=resources.gpu_memory_gb)
    if memory < resources.gpu_memory_gb:
        wanted = f"GPUs with {resources.gpu_memory_gb} GB are requested"
        reason = f"{wanted}; those of the largest worker that can run the job have {memory} GB"
        report.problems.add("resources.gpu_memory_gb", reason, code="gpus_unavailable")


def _check_samplers(report: Report, resources: Resources) -> None:
    """Adds a problem if sampler GPUs are requested for a job without samplers or without training GPUs."""
    if not resources.sampler_gpus:
        return
    if not isinstance(report.method, Reinforcement):
        reason = "must be 0: only a reinforcement job samples while it trains"
        report.problems.add("resources.sampler_gpus", reason)
    elif not resources.gpus:
        report.problems.add("resources.sampler_gpus", "needs resources.gpus: the GPUs that train")


def _check_division(resources: Resources, machines: list[Machine], problems: Problems) -> None:
    """Adds a problem if the GPUs cannot be divided among the hosts, or no cluster has that many hosts."""
    if resources.min_gpus > resources.gpus:
        problems.add("resources.min_gpus", f"must be at most resources.gpus, {resources.gpus}")
    for name in ("gpus", "sampler_gpus"):
        number = getattr(resources, name)
        if resources.hosts and number % resources.hosts:
            reason = f"must divide resources.{name}, {number}: each host gets the same number"
            problems.add("resources.hosts", reason)
    if resources.hosts and not resources.gpus:
        problems.add("resources.hosts", "needs resources.gpus: they are divided among the hosts")
    most = max((machine.hosts for machine in machines), default=resources.hosts)
    if most < resources.hosts:
        reason = f"{resources.hosts} hosts are requested; the largest cluster has {most}"
        problems.add("resources.hosts", reason, code="hosts_unavailable")


def check_capabilities(report: Report, machines: list[Machine]) -> None:
    """Adds a problem for each part that no machine can run, and for each grader outside monty's subset."""
    hosts, needs = [machine.capabilities for machine in machines], needs_of(report.method)
    if not needs:
        return
    if any(UNSAFE in host for host in hosts) and any(needed != MCP for _, needed in needs):
        report.warn(UNSAFE_WARNING["code"], UNSAFE_WARNING["message"])
    required = frozenset(needed for _, needed in needs)
    if not hosts or any(required | {SANDBOX} <= host for host in hosts):
        return
    able = any(required <= host for host in hosts)
    for where, needed in needs:
        if not able and not any(needed in host for host in hosts):
            reason, code = _MISSING.get(needed, _NO_SANDBOX)
            report.problems.add(where, reason, code=code)
    if able and monty.installed():
        _check_subset(report.method, report.problems)


def _check_subset(method: Method, problems: Problems) -> None:
    """Report python graders outside the language subset that runs on machines without bubblewrap."""
    for where, rule in rules_of(method):
        if rule.type != "python":
            continue
        try:
            found = monty.subset_problems(rule.source)
        except SandboxUnavailable as error:
            problems.add(where, str(error), code="sandbox_unavailable")
            continue
        for reason in found:
            shown = f"without a sandbox only a subset of Python runs here: {reason[-500:]}"
            problems.add(f"{where}.source", shown, code="invalid_grader")


def warn_of_missing_sinks(report: Report, kinds: Iterable[str], machines: list[Machine]) -> None:
    """Warns of each sink whose package no known machine has."""
    for kind in dict.fromkeys(kinds):
        if machines and not any(f"sink:{kind}" in machine.capabilities for machine in machines):
            message = (
                f"integrations: no worker has the package of {kind}; {install_hint(kind)}. "
                "The job runs without it; its metrics are sent once it is installed."
            )
            report.warn("sink_unavailable", message)
