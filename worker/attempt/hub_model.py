"""Downloads a base model from the hub before the engine starts, and shows the progress as the job's phase.

Boundary: one child process, `python -m service.hub`. In it, attempts that need the same model wait for each
other; a killed download is resumed.
"""

from pathlib import Path

from service.hub.child_process import command
from service.hub.models import HubError, folder_of, result_of
from service.jobs.results.weights import WeightsMissing, model_parts
from service.jobs.store.lineage import lineage_of
from service.platform.catalog import CatalogEntry
from service.platform.errors import Unavailable
from worker.attempt.attempt import Attempt, Refused
from worker.attempt.follow import TICK_SECONDS, Ending, note_phase, requested_stop
from worker.launchers.local import EngineProcess

SHOWN_PERCENT = 5
"""Progress between two phases, each of which is an entry in the job's history."""
GB = 10**9


def await_model(attempt: Attempt) -> Ending | None:
    """Download the job's base model, if this machine lacks it.

    Returns an ending if the job has to stop first. Raises Refused, Unavailable, Lost.
    """
    entry = _missing_model(attempt)
    if entry is None:
        return None
    size = f"{(entry.size_bytes or 0) / GB:.1f} GB"
    attempt.note(f"Downloading {entry.path} ({size}) at revision {entry.revision}.", {"model": entry.path})
    settings = attempt.worker.settings
    process = EngineProcess(command(settings, entry.path, entry.revision, weights=True), None)
    try:
        attempt.lease.guard(process)
        if (ending := _follow_download(attempt, process, entry)) is not None:
            return ending
        process.close()
        result_of("\n".join(process.log_tail()))
    except HubError as error:
        if error.is_temporary:
            raise Unavailable(error.text, code=error.code) from error
        raise Refused(error.code, f"{error}.", error.hint) from error
    finally:
        process.close()
    note_phase(attempt, "starting")
    return None


def _missing_model(attempt: Attempt) -> CatalogEntry | None:
    """The base model's entry if its weights have to be downloaded to this machine."""
    worker, job = attempt.worker, attempt.job
    if worker.settings.launcher != "local":
        return None
    lineage = attempt.read(lambda session: lineage_of(session, job.tenant, job.model))
    try:
        base = model_parts(lineage, worker.catalog).base
    except WeightsMissing:
        return None  # `prepare` reports it
    return base if isinstance(base, CatalogEntry) and base.must_download else None


def _follow_download(attempt: Attempt, process: EngineProcess, entry: CatalogEntry) -> Ending | None:
    """Show the progress until the process has ended; an ending if the job has to stop. Raises Lost."""
    folder, shown = folder_of(attempt.worker.settings.home, entry.path, str(entry.revision)), -1
    while process.poll() is None:
        percent = 100 * _present_bytes(folder) // max(1, entry.size_bytes or 0)
        percent = min(99, percent // SHOWN_PERCENT * SHOWN_PERCENT)
        if percent != shown:
            note_phase(attempt, f"downloading model {percent} %")
            shown = percent
        attempt.worker.touch()
        if (request := requested_stop(attempt)) is not None:
            return Ending(stop_request=request)
        attempt.lease.check()
        process.wait(TICK_SECONDS)
    return None


def _present_bytes(folder: Path) -> int:
    total = 0
    for path in folder.glob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # renamed meanwhile
            continue
    return total
