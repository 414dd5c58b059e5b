"""The packages of this interpreter, and the engine's interpreter with its packages and GPUs."""

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

from packaging.requirements import Requirement

from grpo_engine.process.gpus import count_visible_gpus, listed_gpus
from service.ops.doctor.findings import Finding, failure, ok, warning
from service.settings import Settings, unknown_variables

SHOWN = ("fastapi", "sqlalchemy", "celery", "redis", "obstore", "pydantic")
ENGINE_SECONDS = 60.0
"""torch may have to be read from a cold disk."""
_PROBE = """
import importlib.util, json, platform, sys
found = {"python": platform.python_version(), "missing": [], "gpus": 0}
for name in sys.argv[1:]:
    if importlib.util.find_spec(name) is None:
        found["missing"].append(name)
if not found["missing"]:
    import torch
    from grpo_engine.models.fast import native
    found |= {"torch": torch.__version__, "gpus": torch.cuda.device_count()}
    found |= {"compiled": native.library() is not None}
print(json.dumps(found))
"""


def packages() -> Iterator[Finding]:
    """Whether each package of the service is installed in a required version."""
    shown = ", ".join(f"{name} {version(name)}" for name in SHOWN)
    wrong = [reason for text in requires("grpo-service") or () if (reason := _unmet(Requirement(text)))]
    found = f"Python {platform.python_version()}, grpo-service {version('grpo-service')}, {shown}"
    advice = "Install again: pip install 'grpo-service[service,worker]'."
    yield failure("packages", "; ".join(wrong), advice) if wrong else ok("packages", found)


def _unmet(requirement: Requirement) -> str | None:
    """Why a requirement of the service is not met; None if it is met, or belongs to another extra."""
    if requirement.marker and not requirement.marker.evaluate({"extra": "service"}):
        return None
    try:
        installed = version(requirement.name)
    except PackageNotFoundError:
        return f"{requirement.name} is missing"
    is_right = requirement.specifier.contains(installed, prereleases=True)
    return None if is_right else f"{requirement.name} is {installed}, not {requirement.specifier}"


def engine(settings: Settings) -> Iterator[Finding]:
    """Whether the engine's interpreter starts and finds its modules, torch and the machine's GPUs."""
    wanted = [settings.engine_module.partition(".")[0], "torch"]
    wanted += ["vllm"] if settings.runtime.sampler == "vllm" else []
    advice = "GRPO_ENGINE_PYTHON names an interpreter with grpo-service[engine] (or [vllm]) installed."
    try:
        engine = engine_output(settings, "-c", _PROBE, *wanted, seconds=ENGINE_SECONDS)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        reason = getattr(error, "stderr", None) or error
        yield failure("engine", f"{settings.engine_python} does not start: {str(reason)[-300:]}", advice)
        return
    if engine["missing"]:
        found = f"{settings.engine_python} has no {', '.join(engine['missing'])}"
        if runs_jobs(settings):
            yield failure("engine", found, advice)
        else:
            advice = "The API and the sweeper need no engine. If this host should run jobs, install it."
            yield warning("engine", f"{found}; no worker has started on this host", advice)
        return
    yield ok("engine", f"Python {engine['python']}, torch {engine['torch']} in {settings.engine_python}")
    yield from operations(is_compiled=engine["compiled"], usable_gpus=engine["gpus"])
    listed = len(listed_gpus()) if shutil.which("nvidia-smi") else None
    yield gpus(settings.gpus, count_visible_gpus(os.environ), engine["gpus"], listed)


def runs_jobs(settings: Settings) -> bool:
    """Whether this host needs an engine and a sandbox; in production, the API and the sweeper need none."""
    return settings.mode == "embedded" or settings.alive_file.exists()


def engine_output(settings: Settings, *arguments: str, seconds: float) -> dict[str, Any]:
    """The JSON that the engine's interpreter prints; it gets none of the deployment's secrets.

    Raises OSError, SubprocessError or ValueError.
    """
    done = subprocess.run(
        [str(settings.engine_python), *arguments],
        env={name: value for name, value in os.environ.items() if not name.startswith("GRPO_")},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def settings_found(settings: Settings) -> Iterator[Finding]:
    """Mode and home, and a warning for each variable that no setting reads."""
    yield ok("settings", f"mode {settings.mode}, home {settings.home}")
    for name in unknown_variables(os.environ):
        advice = "Correct its name or remove it; docs/reference/configuration.md lists all."
        yield warning("settings", f"{name} has no effect: no setting has this name", advice)


def operations(*, is_compiled: bool, usable_gpus: int) -> Iterator[Finding]:
    """A warning if an engine on a CPU was installed without a compiler."""
    if not (is_compiled or usable_gpus):
        found = "sampling without the compiled operations takes about a third longer"
        yield warning("engine", found, "Install gcc, then install the engine again: pip compiles them.")


def gpus(configured: int, visible: int, usable: int, listed: int | None) -> Finding:
    """GPUs as configured, as visible to this process, as usable by torch, and as listed by the driver."""
    driver = "no nvidia-smi" if listed is None else f"nvidia-smi lists {listed}"
    found = f"jobs may use {configured}; the machine shows {visible}, torch sees {usable}, {driver}"
    if usable < visible:
        advice = (
            "Install a CUDA build of torch that fits the driver, or give the container access to the devices."
        )
        return failure("gpu", found, advice)
    if usable < configured:
        advice = (
            "Lower GRPO_GPUS: without GPUs, a job's ranks are processes on the CPU; with too few, it fails."
        )
        return warning("gpu", found, advice)
    return ok("gpu", found if usable else "none: jobs run on the CPU")
