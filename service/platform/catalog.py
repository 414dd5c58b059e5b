"""The model catalogue: the base models of this deployment and where their weights are stored.

Jobs name an entry, never a path. Boundary: folders and one JSON file; `service.hub` queries the hub.
"""

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from grpo_engine.files.atomic_folder import fsync
from grpo_engine.files.model_folder import damage, unsupported_format
from service.hub.models import HubModel, folder_of, has_weights
from service.platform.token_counting import DamagedModelTextError, ModelTextError, load_model_text
from service.settings import Settings

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")


class CatalogError(Exception):
    """The catalogue file or a name in it cannot be used."""

    public = "the model catalogue cannot be read"
    """Message for users of a job; the exception's own text has paths."""


class NoModels(CatalogError):
    """No model of the catalogue is on this machine, probably because a folder is not mounted."""

    public = "no base model is on the worker's machine"


class _Place(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    path: str
    """A folder with safetensors and a tokenizer, or a hub id."""
    revision: str | None = None
    """Commit of the hub repository."""
    max_context_tokens: int | None = Field(None, ge=1)
    """The operator's limit of prompt and completion together; None: the limit in the model's config."""
    added_at: int | None = None
    """Unix seconds."""
    size_bytes: int | None = None
    """Size of a hub model that this service has checked and workers download. None: the engine finds it."""


class CatalogEntry(_Place):
    """One base model."""

    name: str
    home: Path
    """The deployment's folder on this machine, with downloads of the hub."""

    @property
    def folder(self) -> Path | None:
        """The model's folder on this machine, which may lack its weights; None if there is no folder."""
        path = Path(self.path)
        if self.is_from_hub and self.revision:
            path = folder_of(self.home, self.path, self.revision)
        return path if path.is_dir() else None

    @property
    def is_from_hub(self) -> bool:
        """Whether `path` is a hub id."""
        path = Path(self.path)
        return not path.is_absolute() and not path.is_dir()

    @property
    def must_download(self) -> bool:
        """Whether a worker of this machine has to download its weights first."""
        return self.size_bytes is not None and not (self.folder and has_weights(self.folder))

    @property
    def created(self) -> int:
        """Unix seconds at which it was added, or its config.json was created here; 0: unknown."""
        if self.added_at is not None:
            return self.added_at
        try:
            # not the modification time, which a copy or an archive keeps
            return int((Path(self.path) / "config.json").stat().st_ctime)
        except OSError:
            return 0


def _of_hub(model: HubModel) -> _Place:
    return _Place(
        path=model.id, revision=model.revision, size_bytes=model.size_bytes, added_at=int(time.time())
    )


def _invalid(name: str) -> CatalogError:
    return CatalogError(f"{name!r} is not a model name: use letters, digits, '.', '_', '-' and '/'")


def _refuse_damaged(folder: Path) -> None:
    """Raises CatalogError for a folder that no worker could load."""
    if not (folder / "config.json").is_file():
        is_adapter = (folder / "adapter_config.json").is_file()
        hint = ": it is an adapter; merge it into its base model first" if is_adapter else ""
        raise CatalogError(f"{folder} has no config.json{hint}")
    if reason := _fault(folder):
        raise CatalogError(f"{folder} cannot be loaded: {reason}")


def _fault(folder: Path) -> str | None:
    try:
        if reason := damage(folder):
            return reason
        load_model_text(folder)
    except DamagedModelTextError as error:
        return str(error)
    except (OSError, ModelTextError):
        return None  # missing here, or only workers may read it
    config = json.loads((folder / "config.json").read_bytes())
    return unsupported_format(config, is_quantized_again=False)


_PLACES = TypeAdapter(dict[str, _Place])


def is_valid_name(name: str) -> bool:
    """Letters, digits, `.`, `_`, `-` and `/`, without `..`, empty parts or a slash at the end."""
    return bool(_NAME.fullmatch(name)) and all(part not in ("", "..") for part in name.split("/"))


class Catalog:
    """Reads the catalogue with each call, so models can be added while the service runs."""

    def __init__(self, settings: Settings) -> None:
        self._home = settings.home
        self.file = settings.models or settings.home / "models.json"
        self._required = settings.models is not None
        self._folders = settings.models_dir if settings.models is None else None

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self.entries())

    def has_models(self) -> bool:
        """Whether this machine has or can download a model. Raises CatalogError for a broken file."""
        return any(entry.is_from_hub or entry.folder for entry in self.entries().values())

    def find(self, name: str) -> CatalogEntry | None:
        """The entry of that name, if any. Raises CatalogError for a broken file."""
        return self.entries().get(name)

    def add(self, name: str, path_or_hub_id: str, revision: str | None = None) -> CatalogEntry:
        """Add an entry to the catalogue file. Raises CatalogError for a bad name or folder."""
        if not is_valid_name(name):
            raise _invalid(name)
        path = Path(path_or_hub_id).expanduser()
        if path.exists():
            _refuse_damaged(path)
            path_or_hub_id = str(path.resolve())
        elif not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", path_or_hub_id):
            raise CatalogError(f"{path_or_hub_id} is neither a folder nor a hub id such as Qwen/Qwen3-0.6B")
        return self._put(name, _Place(path=path_or_hub_id, revision=revision, added_at=int(time.time())))

    def add_from_hub(self, name: str, model: HubModel, *, replaces: bool = False) -> CatalogEntry:
        """Add a model that the hub has, at its commit. Raises CatalogError.

        `replaces`: replace an entry of that name; otherwise keep it, because another request added it.
        """
        if not is_valid_name(name):
            raise _invalid(name)
        return self._put(name, _of_hub(model), replaces=replaces)

    def place_of(self, name: str, model: HubModel) -> CatalogEntry:
        """The entry that `add_from_hub` would make."""
        return self._entry(name, _of_hub(model))

    def remove(self, name: str) -> CatalogEntry | None:
        """Remove a name from the catalogue file; its files stay. None: the file does not have it."""
        with self._locked():
            places = self._listed()
            place = places.pop(name, None)
            if place is not None:
                self._write(places)
        return None if place is None else self._entry(name, place)

    def _put(self, name: str, place: _Place, *, replaces: bool = True) -> CatalogEntry:
        with self._locked():
            places = self._listed()
            if replaces or name not in places:
                places[name] = place
                self._write(places)
        return self._entry(name, places[name])

    def _entry(self, name: str, place: _Place) -> CatalogEntry:
        return CatalogEntry(name=name, home=self._home, **place.model_dump())

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lets one process at a time change the file. Raises CatalogError if it cannot be written."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.with_name(f".{self.file.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        except OSError as error:
            reason = f"the model catalogue {self.file} cannot be written: {error.strerror}"
            raise CatalogError(reason) from error

    def _write(self, places: dict[str, _Place]) -> None:
        temporary = self.file.with_name(f".{self.file.name}.{os.getpid()}")
        temporary.write_bytes(_PLACES.dump_json(places, indent=2, exclude_none=True))
        fsync(temporary)  # otherwise a loss of power could leave an empty catalogue
        temporary.replace(self.file)

    def entries(self) -> dict[str, CatalogEntry]:
        """All entries by name. Raises CatalogError for a broken file."""
        return self._found() | {name: self._entry(name, place) for name, place in self._listed().items()}

    def _listed(self) -> dict[str, _Place]:
        if not self._required and not self.file.exists():
            return {}
        try:
            places = _PLACES.validate_python(json.loads(self.file.read_text("utf-8")))
        except (OSError, ValueError, ValidationError) as error:
            raise CatalogError(f"the model catalogue {self.file} cannot be read: {error}") from error
        for name in places:
            if not is_valid_name(name):
                raise CatalogError(f"the model catalogue {self.file} has an invalid name: {name!r}")
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
                found[name] = self._entry(name, _Place(path=str(folder)))
        return found
