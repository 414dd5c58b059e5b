"""The `failed` event of an exception that ended the engine, and the exceptions that are the machine's fault.

Boundary: one attempt; the worker decides whether the job is tried again. Left out: torch, because its import
may be what failed; its exceptions are recognised by name.
"""

import errno
import re
import socket
import sys
import traceback
from pathlib import Path

from grpo_engine.contract.errors import DeviceMemoryError, EngineError
from grpo_engine.contract.events import Failed
from grpo_engine.files.atomic_folder import system_error

MAX_FRAMES, MAX_CHARACTERS = 8, 500
HINT = (
    "This is a defect of the engine or of a library: report the evidence to the operator. "
    "Other settings, or the newest checkpoint as the model of a new job, may avoid it."
)
_OF_MACHINE = {"MemoryError", "MachineError", "AcceleratorError", "DistError"}
"""Names of exceptions: no memory on the host, a lost sandbox, a failed device, a rank that ended."""
_OF_NETWORK = (ConnectionError, TimeoutError, socket.gaierror)
_PASSING = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE, errno.EREMOTEIO),
    *(errno.ENOMEM, errno.EAGAIN, errno.EBUSY, errno.EMFILE, errno.ENFILE, errno.ENOBUFS),
    *(errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.EADDRINUSE),
}
"""Numbers of temporary errors of the operating system; a missing file is not temporary."""
_TEXTS_OF_MACHINE = re.compile(r"CUDA error|CUBLAS_STATUS|CUDNN_STATUS|NCCL|gloo|can't allocate memory", re.I)
"""Texts of machine errors that are raised as a plain RuntimeError."""


def failure_of(error: Exception) -> Failed | None:
    """The event that describes the exception; None if the machine is at fault, which is a crash."""
    if isinstance(error, EngineError):
        return Failed(code=error.code, message=error.message, hint=error.hint, evidence=error.evidence)
    types = {base.__name__ for base in type(error).__mro__}
    if "OutOfMemoryError" in types:
        return Failed(code=DeviceMemoryError.code, message=_shown(str(error)), hint=DeviceMemoryError.hint)
    if types & _OF_MACHINE or _is_passing(error):
        return None
    message = _shown(f"{type(error).__name__}: {error}")
    return Failed(code=EngineError.code, message=message, hint=HINT, evidence=_last_frames(error))


def _is_passing(error: Exception) -> bool:
    if isinstance(error, RuntimeError):
        return _TEXTS_OF_MACHINE.search(str(error)) is not None
    return isinstance(error, _OF_NETWORK) or system_error(error) in _PASSING


def _last_frames(error: Exception) -> tuple[str, ...]:
    """The innermost frames of its traceback, the innermost last."""
    frames = traceback.extract_tb(error.__traceback__)[-MAX_FRAMES:]
    return tuple(
        _shown(f"{_in_package(frame.filename)}:{frame.lineno} in {frame.name}: {frame.line}")
        for frame in frames
    )


def _in_package(filename: str) -> str:
    """The path below the folder from which its package was imported."""
    roots = [root for root in sys.path if root and Path(filename).is_relative_to(root)]
    return str(Path(filename).relative_to(max(roots, key=len))) if roots else Path(filename).name


def _shown(text: str) -> str:
    return text[:MAX_CHARACTERS]
