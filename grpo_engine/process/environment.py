"""What the libraries of an engine read from the environment when they are loaded; no torch here."""

from __future__ import annotations

import os

DEFAULTS = {
    # libgomp's own default is to spin long at barriers, which is ten times slower as soon as another process
    # wants a core; never to spin is slow where steps are short
    "GOMP_SPINCOUNT": "10000",
    # oneDNN's own default is to keep a thousand compiled products
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    # torch keeps a thousand more of them, one for each shape that it meets: 300 MB after some steps
    "LRU_CACHE_CAPACITY": "64",
}


def set_defaults() -> None:
    """Before torch is imported; what is set already stays."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
