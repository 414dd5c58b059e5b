"""The model catalogue: the base models of this deployment and where their weights are stored.

Jobs name an entry, never a path. Boundary: reads folders and one JSON file; no weights, no hub.
"""

import json
import os
import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from service.settings import Settings

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")


class CatalogError(Exception):
    """The catalogue file or a name in it cannot be used."""


class _Place(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    path: str
    """A folder with safetensors and a tokenizer, or a hub id."""
    revision: str | None = None
    """Commit of the hub repository."""
    max_context_tokens: int | None = Field(None, ge=1)
    """The operator's limit of prompt and completion together; None: the limit in the model's config."""


class CatalogEntry(_Place):
    """One base model."""

    name: str

    @property
    def folder(self) -> Path | None:
        """The model's folder on this machine; None for a hub id."""
        path = Path(self.path)
        return path if path.is_dir() else None

    @property
    def created(self) -> int:
        """Unix seconds of its config.json; 0 if it is not on this machine or may not be read."""
        try:
            return int((Path(self.path) / "config.json").stat().st_mtime)
        except OSError:
            return 0


_PLACES = TypeAdapter(dict[str, _Place])


def is_valid_name(name: str) -> bool:
    """Letters, digits, `.`, `_`, `-` and `/`, without `..`, empty parts or a slash at the end."""
    return bool(_NAME.fullmatch(name)) and all(part not in ("", "..") for part in name.split("/"))


class Catalog:
    """Reads the catalogue with each call, so models can be added while the service runs."""

    def __init__(self, settings: Settings) -> None:
        self._file = settings.models or settings.home / "models.json"
        self._required = settings.models is not None
        self._folders = settings.models_dir if settings.models is None else None

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self.entries())

    def find(self, name: str) -> CatalogEntry | None:
        """The entry of that name, if any. Raises CatalogError for a broken file."""
        return self.entries().get(name)

    def add(self, name: str, path_or_hub_id: str, revision: str | None = None) -> CatalogEntry:
        """Add an entry to the catalogue file. Raises CatalogError for a bad name or folder."""
        if not is_valid_name(name):
            raise CatalogError(f"{name!r} is not a model name: use letters, digits, '.', '_', '-' and '/'")
        path = Path(path_or_hub_id).expanduser()
        if path.exists():
            if not (path / "config.json").is_file():
                raise CatalogError(f"{path} has no config.json")
            path_or_hub_id = str(path.resolve())
        elif not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", path_or_hub_id):
            raise CatalogError(f"{path_or_hub_id} is neither a folder nor a hub id such as Qwen/Qwen3-0.6B")
        places = self._listed() | {name: _Place(path=path_or_hub_id, revision=revision)}
        self._write(places)
        return CatalogEntry(name=name, **places[name].model_dump())

    def _write(self, places: dict[str, _Place]) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        temporary.write_bytes(_PLACES.dump_json(places, indent=2, exclude_none=True))
        temporary.replace(self._file)

    def entries(self) -> dict[str, CatalogEntry]:
        """All entries by name. Raises CatalogError for a broken file."""
        listed = {
            name: CatalogEntry(name=name, **place.model_dump()) for name, place in self._listed().items()
        }
        return self._found() | listed

    def _listed(self) -> dict[str, _Place]:
        if not self._required and not self._file.exists():
            return {}
        try:
            places = _PLACES.validate_python(json.loads(self._file.read_text("utf-8")))
        except (OSError, ValueError, ValidationError) as error:
            raise CatalogError(f"the model catalogue {self._file} cannot be read: {error}") from error
        for name in places:
            if not is_valid_name(name):
                raise CatalogError(f"the model catalogue {self._file} has an invalid name: {name!r}")
        return places

    def _found(self) -> dict[str, CatalogEntry]:
        """Folders of `home/models` with a config.json, one or two levels deep."""
        if self._folders is None or not self._folders.is_dir():
            return {}
        configs = [*self._folders.glob("*/config.json"), *self._folders.glob("*/*/config.json")]
        found = {}
        for folder in (config.parent for config in configs):
            name = folder.relative_to(self._folders).as_posix()
            if is_valid_name(name):
                found[name] = CatalogEntry(name=name, path=str(folder))
        return found
