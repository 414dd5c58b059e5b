"""The `failed` event of an exception that ends the engine, and the exceptions that are the machine's."""

import errno
import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from grpo_engine.contract.errors import MachineError, NonFiniteError
from grpo_engine.contract.events import Failed
from grpo_engine.run.engine_errors import MAX_CHARACTERS, MAX_FRAMES, failure_of


def failure(error: Exception) -> Failed:
    found = failure_of(error)
    assert found is not None
    return found


def test_an_unexpected_exception_is_shown_with_its_type_and_its_innermost_frames() -> None:
    with pytest.raises(ValueError, match="Expecting value") as raised:
        json.loads("x")
    found = failure(raised.value)
    assert (found.code, found.message) == (
        "engine_error",
        "JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
    )
    assert found.evidence[-1].startswith("json/decoder.py:")
    assert found.evidence[0].endswith(
        'in test_an_unexpected_exception_is_shown_with_its_type_and_its_innermost_frames: json.loads("x")'
    )


def test_message_and_evidence_are_bounded() -> None:
    def descend(levels: int) -> None:
        if levels == 0:
            raise KeyError("x" * 9999)
        descend(levels - 1)

    with pytest.raises(KeyError) as raised:
        descend(50)
    found = failure(raised.value)
    assert len(found.message) == MAX_CHARACTERS
    assert len(found.evidence) == MAX_FRAMES
    assert all(len(line) <= MAX_CHARACTERS for line in found.evidence)


def test_an_error_with_a_code_keeps_it() -> None:
    assert failure(NonFiniteError("NaN", evidence=("x",))) == Failed(
        code="non_finite", message="NaN", hint=NonFiniteError.hint, evidence=("x",)
    )


def test_no_memory_on_the_device_is_not_a_crash() -> None:
    found = failure(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."))
    assert found.code == "out_of_memory"
    assert found.message == "CUDA out of memory. Tried to allocate 20.00 GiB."


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EIO, "Input/output error"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        OSError(errno.ETIMEDOUT, "Connection timed out"),
        BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
        ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
        socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
        MemoryError(),
        MachineError("no sandbox"),
        torch.AcceleratorError("CUDA error: unspecified launch failure", 719),
        torch.distributed.DistBackendError("NCCL communicator was aborted"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1"),
    ],
)
def test_errors_of_the_machine_have_no_event(error: Exception) -> None:
    assert failure_of(error) is None


@pytest.mark.parametrize(
    ("expected", "use"),
    [
        ("FileNotFoundError", lambda folder: (folder / "missing").read_text()),
        ("IsADirectoryError", lambda folder: folder.read_text()),
        ("NotADirectoryError", lambda folder: (Path(__file__) / "file").read_text()),
        ("OSError", lambda folder: (folder / ("x" * 300)).read_text()),
    ],
)
def test_a_path_that_cannot_be_used_is_a_failure_with_its_name(
    expected: str, use: Callable[[Path], object], tmp_path: Path
) -> None:
    with pytest.raises(OSError, match="Errno") as raised:
        use(tmp_path)
    found = failure(raised.value)
    assert found.code == "engine_error"
    assert found.message.startswith(f"{expected}: [Errno ")


def test_a_missing_permission_is_a_failure() -> None:
    found = failure(PermissionError(errno.EACCES, "Permission denied", "/data/rows.jsonl"))
    assert found.message == "PermissionError: [Errno 13] Permission denied: '/data/rows.jsonl'"
