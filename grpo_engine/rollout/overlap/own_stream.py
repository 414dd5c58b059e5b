"""A stream of the sampling thread, so that a GPU samples and trains at the same time."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch


class OwnStream:
    """A CUDA stream beside the default one; on a CPU it does nothing."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def current(self) -> AbstractContextManager[object]:
        """Inside the block, this thread issues its work to this stream."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    @contextmanager
    def handing_over(self) -> Iterator[None]:
        """Inside the block, the caller's stream writes what this stream reads. So it waits for earlier work
        of this stream, whose later work waits for it. The host waits for neither."""
        if self.stream is None:
            yield
            return
        caller = torch.cuda.current_stream()
        caller.wait_stream(self.stream)
        yield
        self.stream.wait_stream(caller)
