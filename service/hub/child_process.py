"""Starts the child process that requests models from the hub."""

import subprocess
import sys

from grpo_engine.process.parent_death import bound_command
from service.hub.models import HubError, HubModel, result_of
from service.settings import Settings

LIMIT_SECONDS = 60
"""Time for a model's size and description."""


def command(settings: Settings, id: str, revision: str | None, *, weights: bool) -> list[str]:
    """The child's command line. The limits are checked before anything is downloaded."""
    # a worker of another machine has a disk of its own, which it checks itself
    checks_disk = weights or settings.mode == "embedded"
    return [
        *(sys.executable, "-P", "-m", "service.hub", id, "--home", str(settings.home)),
        *(["--revision", revision] if revision else []),
        *(["--max-bytes", str(settings.hub_max_bytes)] if not weights else []),
        *(["--keep-free-bytes", str(settings.min_free_disk_bytes)] if checks_disk else []),
        *(["--weights"] if weights else []),
    ]


def find_model(settings: Settings, id: str, revision: str | None = None) -> HubModel:
    """Look a model up, check its size, and fetch its configuration and tokenizer. Raises HubError."""
    try:
        return _run(command(settings, id, revision, weights=False), LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        reason = f"the hub did not deliver the description of {id} within {LIMIT_SECONDS} s"
        raise HubError("hub_unreachable", reason, "Try again later.", is_temporary=True) from None


def download_model(settings: Settings, id: str, revision: str) -> None:
    """Download all of a model, or wait until another process has. Raises HubError."""
    _run(command(settings, id, revision, weights=True))


def _run(arguments: list[str], limit_seconds: float | None = None) -> HubModel:
    """The child ends with the calling thread. Raises HubError, TimeoutExpired."""
    done = subprocess.run(
        bound_command(arguments),
        timeout=limit_seconds,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return result_of(done.stdout)
