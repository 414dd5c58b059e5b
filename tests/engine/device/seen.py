"""What the pretended device records, and which tensors it holds."""

import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

CUDA = torch.device("cuda", 0)


class Capture(NamedTuple):
    """One recording of a graph."""

    thread: str
    stream: str
    mode: str


@dataclass
class Seen:
    """Counts by the place in the engine."""

    waits: Counter[str] = field(default_factory=Counter)
    """The host waited for the device, to read from it."""
    uploads: Counter[str] = field(default_factory=Counter)
    """Copies from the host."""
    mixed: Counter[str] = field(default_factory=Counter)
    """Operations on tensors of both devices."""
    illegal: Counter[str] = field(default_factory=Counter)
    """What a graph capture forbids."""
    races: Counter[str] = field(default_factory=Counter)
    """Uses of a tensor that another stream may still be writing or reading."""
    captures: list[Capture] = field(default_factory=list)
    graphs: list[Any] = field(default_factory=list)
    streams: dict[str, set[str]] = field(default_factory=dict)
    """Thread → streams on which it worked."""
    largest_allocation: int | None = None
    """Bytes; a larger tensor raises torch.OutOfMemoryError."""
    free_bytes: int = 2**37
    capturing: int | None = None
    """The thread that records a graph."""
    capture_mode: str = ""

    def wait(self, what: str) -> None:
        self._note(self.waits, what)

    def upload(self, what: str) -> None:
        self._note(self.uploads, what)

    def _note(self, counter: Counter[str], what: str) -> None:
        counter[f"{place()} {what}"] += 1
        if self.capturing == threading.get_ident():
            self.illegal[f"{place()} {what}"] += 1

    def working(self, operation: str) -> None:
        """An operation is issued; a global capture forbids it to all other threads."""
        is_other = self.capturing not in (None, threading.get_ident())
        if is_other and self.capture_mode == "global":
            self.illegal[f"{place()} {operation} during another thread's capture"] += 1

    def violations(self) -> dict[str, int]:
        return {**self.mixed, **self.illegal, **self.races}


def place() -> str:
    """File, line and function of the innermost frame of the engine."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = frame.f_code.co_filename
        if "/grpo_engine/" in name:
            return f"{name.split('/grpo_engine/')[1]}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return "outside of the engine"


def storage_of(tensor: Tensor) -> Any | None:
    """None for tensors without memory, such as the zeros that autograd passes."""
    try:
        return tensor.untyped_storage()
    except NotImplementedError:  # torch's error for a tensor that has no storage
        return None


def on_gpu(tensor: Tensor) -> bool:
    return getattr(storage_of(tensor), "is_pretended", False)


def hold(made: Any, seen: Seen) -> Any:
    """Mark tensors as memory of the device. Raises torch.OutOfMemoryError."""
    for tensor in tensors_in(made):
        storage = storage_of(tensor)
        if storage is None or getattr(storage, "is_pretended", False):
            continue
        if seen.largest_allocation is not None and storage.nbytes() > seen.largest_allocation:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {storage.nbytes()} bytes")
        storage.is_pretended = True
    return made


def release(tensor: Tensor) -> Tensor:
    tensor.untyped_storage().is_pretended = False
    return tensor


def tensors_in(tree: Any) -> list[Tensor]:
    """Of an operation's arguments or results."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, list | tuple):
        return []
    return [tensor for each in tree for tensor in tensors_in(each)]


def written_by(func: Any, args: Any) -> list[Tensor]:
    """The arguments that an operation changes."""
    return [
        value
        for argument, value in zip(func._schema.arguments, args, strict=False)
        if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, Tensor)
    ]


def is_cuda(device: Any) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, str) and device.startswith("cuda")
