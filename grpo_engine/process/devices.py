"""Which GPUs a process may use, found without torch: workers count them, a gang deals them out.

Boundary: NVIDIA's device files and CUDA's own variable; whether CUDA works is found out by the engine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "CUDA_VISIBLE_DEVICES"
DEVICE_FILE = re.compile(r"nvidia(\d+)")


def visible_gpus(environment: Mapping[str, str], device_folder: Path = Path("/dev")) -> list[str]:
    """Names as CUDA's variable has them: indices, or what the variable says; as CUDA, up to a bad one."""
    if VARIABLE not in environment:
        found = filter(None, (DEVICE_FILE.fullmatch(path.name) for path in device_folder.glob("nvidia*")))
        return [str(number) for number in sorted(int(match[1]) for match in found)]
    named = [name.strip() for name in environment[VARIABLE].split(",")]
    usable = [bool(name) and not name.startswith("-") for name in named]
    return named[: usable.index(False)] if False in usable else named
