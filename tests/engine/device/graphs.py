"""Pretended CUDA graphs: recording has no effect, replaying repeats all of it in the same memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.overrides import _pop_mode_temporarily as without_functions
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _pop_mode_temporarily as without_dispatch

from tests.engine.device import streams
from tests.engine.device.seen import Capture, Seen, tensors_in, written_by


class Graph(TorchDispatchMode):
    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.seen = seen
        self.calls: list[tuple[Any, Any, Any, list[Tensor]]] = []
        """Operation, its arguments, and the new tensors that it made."""
        self.before: dict[int, tuple[Tensor, Tensor]] = {}
        """Changed tensors with their earlier values, by id."""
        self.replays = 0
        seen.graphs.append(self)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for given in written_by(func, args):
            self.before.setdefault(id(given), (given, given.clone()))
        made = func(*args, **(kwargs or {}))
        if not func.is_view:
            is_new = all(result.alias_info is None for result in func._schema.returns)
            self.calls.append((func, args, kwargs or {}, tensors_in(made) if is_new else []))
        return made

    def undo(self) -> None:
        for tensor, value in self.before.values():
            tensor.copy_(value)

    def replay(self) -> None:
        """The operations were checked when they were recorded."""
        self.replays += 1
        with without_functions(), without_dispatch():
            for func, args, kwargs, made in self.calls:
                found = func(*args, **kwargs)
                for old, new in zip(made, tensors_in(found) if made else [], strict=True):
                    old.copy_(new)
        read = [tensor for _, args, kwargs, _ in self.calls for tensor in tensors_in((args, kwargs))]
        made = [tensor for *_, results in self.calls for tensor in results]
        changed = [tensor for tensor, _ in self.before.values()]
        streams.used(self.seen, "replay", read, [*changed, *made])


@contextmanager
def capture(seen: Seen, graph: Graph, *, capture_error_mode: str = "global", **_: Any) -> Iterator[None]:
    """`torch.cuda.graph`; by default other threads' work is forbidden meanwhile."""
    stream = streams.current().name
    seen.captures.append(Capture(threading.current_thread().name, stream, capture_error_mode))
    seen.capturing, seen.capture_mode = threading.get_ident(), capture_error_mode
    try:
        with graph:
            yield
    finally:
        seen.capturing = None
    graph.undo()
