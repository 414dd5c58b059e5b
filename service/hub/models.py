"""A hub model's facts, the place of its files, and the reasons why it cannot be used."""

import json
import re
from collections.abc import Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo_engine.files.safetensors_index import INDEX, BadTensors, shards

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")


class HubError(Exception):
    """The hub's model cannot be used."""

    def __init__(self, code: str, message: str, hint: str = "", *, is_temporary: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint
        self.is_temporary = is_temporary
        """Whether the same request may succeed later."""

    @property
    def text(self) -> str:
        """Message and hint."""
        return f"{self}. {self.hint}" if self.hint else f"{self}."


@dataclass(frozen=True)
class HubModel:
    """A model that may be downloaded."""

    id: str
    revision: str
    """Commit of the repository."""
    size_bytes: int
    """Weights and description."""


def is_hub_id(name: str) -> bool:
    """Whether a name has the form of a hub's repository, such as `Qwen/Qwen3-0.6B`."""
    return bool(_HUB_ID.fullmatch(name)) and ".." not in name


def is_commit(revision: str | None) -> bool:
    return revision is not None and bool(_COMMIT.fullmatch(revision))


def folder_of(home: Path, id: str, revision: str) -> Path:
    """Where a model's files are on a machine with this home."""
    return home / "hub" / id.replace("/", "--") / revision


def has_weights(folder: Path) -> bool:
    """Whether all weights are there; a file has its name only when it is complete."""
    return is_complete(folder, {path.name for path in folder.glob("*.safetensors")})


def is_complete(folder: Path, names: Set[str]) -> bool:
    """Whether `names` include every file that the folder's index lists."""
    index = folder / INDEX
    try:
        shards(names, index.read_bytes() if index.is_file() else b"")
    except (BadTensors, OSError):
        return False
    return True


def as_line(result: HubModel | HubError) -> str:
    """The last line that the child process prints."""
    if isinstance(result, HubModel):
        return json.dumps({"model": asdict(result)})
    error = {"code": result.code, "message": str(result), "hint": result.hint}
    return json.dumps({"error": {**error, "is_temporary": result.is_temporary}})


def result_of(output: str) -> HubModel:
    """The result in the child's output. Raises HubError."""
    try:
        found: dict[str, Any] = json.loads(output.strip().rpartition("\n")[2])
        if error := found.get("error"):
            raise HubError(**error)
        return HubModel(**found["model"])
    except (ValueError, KeyError, TypeError, AttributeError):
        last = output.strip().rpartition("\n")[2][:300]
        raise HubError("hub_unreachable", f"the download failed: {last}", is_temporary=True) from None
