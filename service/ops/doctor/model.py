"""Shows how jobs run one model of the catalogue, by loading it in a separate engine process."""

import subprocess
from collections.abc import Iterator
from typing import Any

from service.ops.doctor.findings import Finding, failure, ok, warning
from service.ops.doctor.software import engine_output
from service.platform.catalog import Catalog, CatalogEntry, CatalogError
from service.settings import Settings

MODEL_SECONDS = 600.0
"""A large model takes minutes to load."""


def model(settings: Settings, name: str) -> Iterator[Finding]:
    """Which forward pass, decoder and output layer a job gets, and why not faster ones."""
    try:
        entry = Catalog(settings).entries().get(name)
    except CatalogError as error:
        yield failure("model", str(error), "Repair the file that GRPO_MODELS names.")
        return
    if entry is None:
        yield failure("model", f"{name} is not in the catalogue", "`grpo models list` shows the names.")
        return
    try:
        found = _checked(settings, entry)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        lines = str(getattr(error, "stderr", None) or error).strip().splitlines()
        reason = lines[-1].removeprefix(f"{entry.path} cannot be loaded: ") if lines else error
        advice = "A job on this model would fail as well: correct its files or its entry."
        yield failure("model", f"{name} cannot be loaded: {reason}", advice)
        return
    yield ok("model", f"{name} in {found['dtype']} on {found['device']}: {_shown(found['computation'])}")
    for message in found["warnings"]:
        yield warning("model", message, "Jobs run, but slower than this model could.")


def _checked(settings: Settings, entry: CatalogEntry) -> dict[str, Any]:
    """The output of `grpo_engine.run.model_check`. Raises OSError, SubprocessError or ValueError."""
    revision = [] if entry.revision is None else ["--revision", entry.revision]
    runtime = ["--runtime", settings.runtime.model_dump_json()]
    check = ["-m", "grpo_engine.run.model_check", "--path", entry.path, *revision, *runtime]
    return engine_output(settings, *check, seconds=MODEL_SECONDS)


def _shown(computation: dict[str, Any]) -> str:
    """ "forward packed (why not faster), decoder kernels, head frozen"."""
    reasons = computation["slower_because"]
    parts = {part: computation[part] for part in ("forward", "decoder", "head")}
    return ", ".join(
        f"{part} {name}" + (f" ({reasons[part]})" if part in reasons else "") for part, name in parts.items()
    )
