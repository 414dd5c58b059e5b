"""Removes a base model from the catalogue of this machine, with the files that the service owns."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.jobs.model.names import base_of
from service.jobs.store.queue_health import IS_UNFINISHED
from service.platform.catalog import Catalog, CatalogEntry, CatalogError
from service.platform.tables.core import Job
from service.settings import Settings

SHOWN_JOBS = 5


@dataclass(frozen=True)
class RemovedModel:
    freed_bytes: int
    kept: str | None
    """A folder outside `$GRPO_HOME`, which the catalogue only lists; it is not deleted."""


def unfinished_users(session: Session, name: str) -> list[str]:
    """Ids of all tenants' unfinished jobs that need a model: as their base model, or as a reward model."""
    columns = (Job.id, Job.model, Job.method)
    rows = session.execute(select(*columns).where(IS_UNFINISHED).order_by(Job.created_at))
    return [job_id for job_id, model, method in rows if base_of(model) == name or _grades(method, name)]


def _grades(value: Any, name: str) -> bool:
    """Whether a reward model of this name is anywhere in a stored method, also of another version."""
    if isinstance(value, Mapping):
        is_grader = value.get("type") == "reward_model" and value.get("model") == name
        return is_grader or any(_grades(part, name) for part in value.values())
    return isinstance(value, list) and any(_grades(part, name) for part in value)


def remove_base(session: Session, settings: Settings, name: str) -> RemovedModel:
    """Remove a catalogue model. Raises CatalogError if it is unknown or an unfinished job uses it."""
    catalog = Catalog(settings)
    entry = catalog.find(name)
    if entry is None:
        raise CatalogError(f"there is no model {name} in the catalogue")
    if users := unfinished_users(session, name):
        more = f" and {len(users) - SHOWN_JOBS} more" if len(users) > SHOWN_JOBS else ""
        jobs = ", ".join(users[:SHOWN_JOBS]) + more
        raise CatalogError(f"{name} is in use by {jobs}: cancel them, or wait until they have finished")
    catalog.remove(name)
    folder = _owned_folder(catalog, entry, settings.home)
    if folder is None:
        return RemovedModel(0, entry.path if entry.folder else None)
    freed = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    shutil.rmtree(folder)
    return RemovedModel(freed, None)


def _owned_folder(catalog: Catalog, entry: CatalogEntry, home: Path) -> Path | None:
    """The model's folder, if it is in `home` and no other model uses it or a folder inside it."""
    folder = entry.folder
    owned = (home / "models", home / "hub")
    if folder is None or folder.is_symlink() or not any(folder.is_relative_to(each) for each in owned):
        return None
    others = [other.folder for name, other in catalog.entries().items() if name != entry.name]
    return None if any(other and other.is_relative_to(folder) for other in others) else folder
