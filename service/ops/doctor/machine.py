"""This machine: the sandbox for untrusted code, and the models of the catalogue."""

from collections.abc import Iterator
from pathlib import Path

from grpo_engine.files.model_folder import damage
from grpo_engine.files.readable import unreadable_file
from grpo_engine.sandbox import monty, self_test
from service.ops.doctor.findings import Finding, failure, ok, warning
from service.ops.doctor.software import runs_jobs
from service.platform.catalog import Catalog, CatalogEntry, CatalogError
from service.settings import Settings


def sandbox(settings: Settings) -> Iterator[Finding]:
    """Whether the sandbox withstands the attacks that a worker tries when it starts."""
    found = self_test()
    if found.available:
        yield ok("sandbox", f"withstands {len(found.attacks)} attacks ({', '.join(sorted(found.attacks))})")
        return
    rest = "python graders run in a subset of the language" if monty.installed() else "such jobs are refused"
    advice = "Install bubblewrap and allow user namespaces (sysctl kernel.unprivileged_userns_clone=1)."
    if not runs_jobs(settings):
        rest = "no worker has started on this host"
        advice = f"The API and the sweeper need no sandbox. If this host should run jobs: {advice}"
    yield warning("sandbox", f"{found.reason}; {rest}", advice)


def models(settings: Settings) -> Iterator[Finding]:
    """Whether the weights of each catalogue entry are on this disk."""
    try:
        entries = Catalog(settings).entries()
    except CatalogError as error:
        yield failure("models", str(error), "Repair the file that GRPO_MODELS names.")
        return
    if not entries:
        advice = "`grpo models add NAME PATH`, or a folder with safetensors weights in $GRPO_HOME/models."
        yield warning("models", "none; jobs need a base model", advice)
        return
    problems = [problem for entry in entries.values() if (problem := _problem(entry))]
    yield from problems or [ok("models", ", ".join(sorted(entries)))]


def _problem(entry: CatalogEntry) -> Finding | None:
    if entry.folder is None and Path(entry.path).is_absolute():
        advice = f"Put the weights of {entry.name} there, or name another folder."
        return failure("models", f"{entry.name}: there is no folder {entry.path}", advice)
    if entry.must_download:
        return None  # a worker downloads it with its first job
    if entry.folder is None:
        advice = "Download it to a folder, or allow the engine's machine to reach the hub."
        return warning("models", f"{entry.name}: {entry.path} is a hub id, not a folder here", advice)
    if reason := unreadable_file(entry.folder):
        advice = "Let the user of API and workers read the model: chmod -R a+rX."
        return failure("models", f"{entry.name}: {reason}", advice)
    if reason := damage(entry.folder):
        return failure("models", f"{entry.name}: {reason}", "Copy or download the model again.")
    if not list(entry.folder.glob("*.safetensors")):
        advice = "Only safetensors weights are loaded: convert them."
        return failure("models", f"{entry.name}: {entry.folder} has no *.safetensors", advice)
    return None
