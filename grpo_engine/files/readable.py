"""Finds a file in a model's folder that this process may not read.

The loader of safetensors says "No such file" for every failure to open one.
"""

import os
import stat
from pathlib import Path

READ = (".safetensors", ".json", ".jinja", ".model", ".txt")
"""Endings of the files that loaders read."""


def unreadable_file(folder: Path) -> str | None:
    """The first file that this process may not read, with its mode and this user's id; None: all are
    readable."""
    if not os.access(folder, os.R_OK | os.X_OK):
        return _described(folder)
    files = sorted(path for path in folder.iterdir() if path.suffix in READ)
    return next((_described(path) for path in files if not os.access(path, os.R_OK)), None)


def _described(path: Path) -> str:
    try:
        mode = stat.filemode(path.stat().st_mode)
    except OSError as error:  # a broken link, or a folder above it that may not be searched
        return f"{path} cannot be read: {error.strerror}"
    return f"{path} ({mode}) cannot be read by the user with id {os.geteuid()}"
