"""What this machine can run: untrusted code, and the models of the catalogue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from grpo_engine.sandbox import monty, self_test
from service.ops.doctor.findings import Finding, failure, ok, warning
from service.platform.catalog import Catalog, CatalogEntry, CatalogError
from service.settings import Settings


def sandbox() -> Iterator[Finding]:
    """Attacked as a worker attacks it when it starts."""
    found = self_test()
    if found.available:
        yield ok("sandbox", f"holds against {len(found.probes)} attacks ({', '.join(sorted(found.probes))})")
        return
    rest = "python graders run in a subset of the language" if monty.installed() else "such jobs are refused"
    advice = "Install bubblewrap and allow user namespaces (sysctl kernel.unprivileged_userns_clone=1)."
    yield warning("sandbox", f"{found.reason}; {rest}", advice)


def models(settings: Settings) -> Iterator[Finding]:
    """Each entry of the catalogue has its weights on this disk."""
    try:
        entries = [Catalog(settings).find(name) for name in Catalog(settings).names()]
    except CatalogError as error:
        yield failure("models", str(error), "Repair the file that GRPO_MODELS names.")
        return
    found = [finding for entry in entries if entry for finding in _entry(entry)]
    if not entries:
        advice = "`grpo models add NAME PATH`, or a folder with safetensors weights in $GRPO_HOME/models."
        found = [warning("models", "there is none, so there can be no job", advice)]
    yield from found or [ok("models", ", ".join(entry.name for entry in entries if entry))]


def _entry(entry: CatalogEntry) -> Iterator[Finding]:
    """Nothing where all is well."""
    if entry.folder is None:
        is_path = Path(entry.path).is_absolute()
        advice = f"Put the weights of {entry.name} there, or name another folder."
        if is_path:
            yield failure("models", f"{entry.name}: there is no folder {entry.path}", advice)
        else:
            advice = "Fetch it to a folder, or let the engine's machine reach the hub."
            yield warning("models", f"{entry.name}: {entry.path} is not a folder here but a hub's", advice)
    elif not list(entry.folder.glob("*.safetensors")):
        advice = "Only safetensors weights are loaded: convert them."
        yield failure("models", f"{entry.name}: {entry.folder} holds no *.safetensors", advice)
