"""Which sinks' packages are there, and what to say where one is not.

Boundary: looks for packages and imports none: they cost seconds and hundreds of megabytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from importlib.util import find_spec
from typing import Any, Protocol

PACKAGES = {"wandb": "wandb", "tensorboard": "tensorboard", "mlflow": "mlflow"}
"""Sink → package; the extra of `grpo-service` has the sink's name."""


class Machine(Protocol):
    """What is asked of one: names of what it offers."""

    @property
    def capabilities(self) -> frozenset[str]: ...


@cache
def installed_sinks() -> frozenset[str]:
    """As a machine announces them: `sink:wandb`."""
    return frozenset(f"sink:{kind}" for kind, package in PACKAGES.items() if find_spec(package) is not None)


def advice(kind: str) -> str:
    """How to get a package."""
    return f"install it there: pip install 'grpo-service[{kind}]'"


def warn_of_missing(
    integrations: Iterable[Any], machines: Iterable[Machine], warn: Callable[[str, str], None]
) -> None:
    """A warning for each sink that no known machine has the package of."""
    hosts = [machine.capabilities for machine in machines]
    for kind in dict.fromkeys(one.type for one in integrations):
        if hosts and not any(f"sink:{kind}" in host for host in hosts):
            message = (
                f"integrations: no worker has the package of {kind}: {advice(kind)}. "
                "The job runs without it, and its metrics follow when it is there."
            )
            warn("sink_unavailable", message)
