"""This interpreter and its packages against what the project asks for, and the engine's interpreter."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

from packaging.requirements import Requirement

from grpo_engine.process.setup import visible_gpus
from service.ops.doctor.findings import Finding, failure, ok, warning
from service.settings import Settings

SHOWN = ("fastapi", "sqlalchemy", "celery", "redis", "obstore", "pydantic")
ENGINE_SECONDS = 60.0
"""torch is read from a cold disk."""
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
    """Python, and each package of the service in a version that it was made for."""
    shown = ", ".join(f"{name} {version(name)}" for name in SHOWN)
    wrong = [reason for text in requires("grpo-service") or () if (reason := _unmet(Requirement(text)))]
    found = f"Python {platform.python_version()}, grpo-service {version('grpo-service')}, {shown}"
    if wrong:
        yield failure(
            "packages", "; ".join(wrong), "Install again: pip install 'grpo-service[service,worker]'."
        )
    else:
        yield ok("packages", found)


def _unmet(requirement: Requirement) -> str | None:
    """Why a requirement of the service is not met; extras of others are not asked for here."""
    if requirement.marker and not requirement.marker.evaluate({"extra": "service"}):
        return None
    try:
        installed = version(requirement.name)
    except PackageNotFoundError:
        return f"{requirement.name} is missing"
    is_right = requirement.specifier.contains(installed, prereleases=True)
    return None if is_right else f"{requirement.name} is {installed}, not {requirement.specifier}"


def engine(settings: Settings) -> Iterator[Finding]:
    """The engine's interpreter starts and finds its modules, torch and the machine's GPUs."""
    wanted = [settings.engine_module.partition(".")[0], "torch"]
    wanted += ["vllm"] if settings.runtime.sampler == "vllm" else []
    advice = "GRPO_ENGINE_PYTHON names an interpreter with grpo-service[engine] (or [vllm]) installed."
    try:
        told = _ask_engine(settings, wanted)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        reason = getattr(error, "stderr", None) or error
        yield failure("engine", f"{settings.engine_python} does not start: {str(reason)[-300:]}", advice)
        return
    if told["missing"]:
        found = f"{settings.engine_python} has no {', '.join(told['missing'])}"
        yield failure("engine", found, advice)
        return
    yield ok("engine", f"Python {told['python']}, torch {told['torch']} in {settings.engine_python}")
    yield from operations(is_compiled=told["compiled"], usable_gpus=told["gpus"])
    yield gpus(settings.gpus, len(visible_gpus(os.environ)), told["gpus"], _driver_sees())


def _ask_engine(settings: Settings, wanted: list[str]) -> dict[str, Any]:
    """Raises OSError, SubprocessError or ValueError where it does not answer."""
    # it needs none of our secrets for this
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPO_")}
    done = subprocess.run(
        [str(settings.engine_python), "-c", _PROBE, *wanted],
        env=environment,
        capture_output=True,
        text=True,
        timeout=ENGINE_SECONDS,
        check=True,
    )
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def operations(*, is_compiled: bool, usable_gpus: int) -> Iterator[Finding]:
    """What an engine on a CPU lacks that was installed without a compiler."""
    if not (is_compiled or usable_gpus):
        found = "it samples without the compiled operations, which takes about a third longer"
        yield warning("engine", found, "Install gcc, then the engine again: pip compiles them with it.")


def gpus(configured: int, visible: int, usable: int, driver: int | None) -> Finding:
    """What a worker counts on, what the machine shows, what torch can use, what the driver lists."""
    listed = "no nvidia-smi" if driver is None else f"nvidia-smi lists {driver}"
    found = f"jobs may use {configured}; the machine shows {visible}, torch sees {usable}, {listed}"
    if usable < visible:
        advice = "Install a CUDA build of torch that fits the driver, or let the container see the devices."
        return failure("gpu", found, advice)
    if usable < configured:
        advice = "Set GRPO_GPUS to what is there: a job on more of them runs as processes on the CPU."
        return warning("gpu", found, advice)
    return ok("gpu", found if usable else "none: jobs run on the CPU")


def _driver_sees() -> int | None:
    if shutil.which("nvidia-smi") is None:
        return None
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10, check=False)
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
