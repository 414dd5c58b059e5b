"""The fork server that runs *inside* the sandbox: one forked child for each request.

The parent passes this file's text to `python -c`, so it imports the standard library only. What a child does
with user code is in `guest_modes.py`, whose text comes with the settings. A message on descriptor 0 or 1 is a
length (4 bytes, big-endian) and JSON. After each request the parent sends a nonce. The server reads it only
when the child has ended, so no child ever has it in its memory, and a child has neither descriptor. A child
answers through its own pipe: length, seal, kind (`v` value as JSON, `e` error text), text. The seal waits
unread in another pipe. The server compiles user code but never runs it. The parent trusts only the nonce.
"""

import contextlib
import functools
import importlib
import json
import linecache
import math
import os
import random
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

Perform = Callable[..., tuple[bytes, str]]
SEAL_BYTES = 16
LOOK_SECONDS = 0.25
MAX_FILES = 10_000
FOLDER = "."
"""The server starts and stays in the folder that children may write to."""
_PR_SET_CHILD_SUBREAPER = 36


def serve() -> None:
    """Set the limits, report readiness, then answer requests in turn until the input ends."""
    settings = _receive()
    for kind, limit in _limits(settings).items():
        _, hard = resource.getrlimit(kind)  # the parent may have lower limits
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))
    if settings["packages"]:
        os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # threads do not survive a fork
        sys.path += settings["packages"]
    sys.modules.update({name: ModuleType(name) for name in settings["left_out"]})
    for name in settings["preload"]:
        importlib.import_module(name)
    if not settings["alone"]:
        importlib.import_module("ctypes").CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _send({"ready": True})
    perform = _load(settings["modes"])
    program = _compile(settings["source"], settings["filename"])
    while (request := _receive()) is not None:
        reply = _answer(request, program, perform, settings)
        _send({"nonce": _read(SEAL_BYTES).hex(), **reply})


def _load(text: str) -> Perform:
    """The function `perform` of `guest_modes.py`."""
    namespace: dict[str, Any] = {"__name__": "guest_modes"}
    exec(compile(text, "<guest_modes>", "exec"), namespace)  # noqa: S102 - the parent's own text
    return namespace["perform"]


def _limits(settings: Any) -> dict[int, int]:
    return {
        resource.RLIMIT_AS: settings["memory_bytes"],
        resource.RLIMIT_NPROC: settings["processes"],
        resource.RLIMIT_FSIZE: settings["file_bytes"],
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }


def _compile(source: str, filename: str) -> Any:
    """Code object, or the error text."""
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    try:
        return compile(source, filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return "".join(traceback.format_exception_only(error))


def _answer(request: Any, program: Any, perform: Perform, settings: Any) -> dict[str, Any]:
    """Run one child to its end or its limit. Nothing that it started is left afterwards."""
    if isinstance(program, str):
        return {"error": program, "output": "", "dirty": False}
    (result, result_end), (output, output_end), (seal_start, seal_end) = os.pipe(), os.pipe(), os.pipe()
    clean = _traces()
    child = os.fork()
    if child == 0:
        _child(functools.partial(perform, request, program), request, result_end, seal_start, output_end)
    seal = os.urandom(SEAL_BYTES)
    for descriptor in (result_end, output_end, seal_start):
        os.close(descriptor)
    os.write(seal_end, seal)
    limits = {result: settings["value_bytes"], output: settings["output_bytes"]}
    reply, texts = _watch(child, limits, request["seconds"], settings["alone"])
    for descriptor in (result, output, seal_end):
        os.close(descriptor)
    reply["output"] = bytes(texts[output]).decode("utf-8", "replace")
    left_over = _end(child, reply, settings["alone"])
    reply = _judge(reply, bytes(texts[result]), seal, left_over)
    return {**reply, "dirty": reply["dirty"] or _traces() != clean}


def _traces() -> tuple[int, int]:
    """FOLDER's times of change and access. They differ if a child read the folder, or left a file, a mode or
    an attribute in it for a later child."""
    found = os.stat(FOLDER)
    return found.st_ctime_ns, found.st_atime_ns


def _watch(
    child: int, limits: dict[int, int], seconds: float, alone: bool
) -> tuple[dict[str, Any], dict[int, bytearray]]:
    """Read the child's pipes until it has ended, its time is over or a pipe has carried too much."""
    deadline = time.monotonic() + seconds
    texts = {descriptor: bytearray() for descriptor in limits}
    handle, poller = os.pidfd_open(child), select.poll()
    try:
        for descriptor in (*limits, handle):
            poller.register(descriptor, select.POLLIN)
        ended = False
        while not ended:
            left = deadline - time.monotonic()
            ready = dict(poller.poll(min(max(left, 0), LOOK_SECONDS) * 1000))
            if left <= 0:
                return {"error": "out of time", "timed_out": True}, texts
            if alone and _num_files() > MAX_FILES:
                return {"error": f"more than {MAX_FILES:,} files"}, texts
            ended = ready.pop(handle, 0) != 0
            for descriptor in texts if ended else ready:
                if not _drain(descriptor, texts[descriptor], limits[descriptor], to_the_end=ended):
                    poller.unregister(descriptor)
                if len(texts[descriptor]) > limits[descriptor]:
                    return {"error": f"more than {limits[descriptor]:,} bytes of output"}, texts
    finally:
        os.close(handle)
    return {}, texts


def _num_files() -> int:
    """Number of files and folders in FOLDER. Empty ones take no space there, but they take kernel memory."""
    usage = os.statvfs(FOLDER)
    return usage.f_files - usage.f_ffree


def _drain(descriptor: int, text: bytearray, limit: int, *, to_the_end: bool) -> bool:
    """Append what is available; False if the other side has closed the pipe."""
    os.set_blocking(descriptor, False)
    with contextlib.suppress(BlockingIOError):
        while len(text) <= limit:
            data = os.read(descriptor, 65_536)
            text += data
            if not data:
                return to_the_end
            if not to_the_end:
                break
    return True


def _end(child: int, reply: dict[str, Any], alone: bool) -> bool:
    """Kill the child and its descendants; True if it had left one running."""
    if reply.get("error"):
        os.kill(child, signal.SIGKILL)
    reply["status"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not alone:
        return _end_orphans()
    try:
        os.kill(-1, signal.SIGKILL)  # all but this server and the namespace's init
    except ProcessLookupError:
        return False
    return True


def _end_orphans() -> bool:
    """Kill the processes left behind, which are now this server's children. Used without a sandbox, because
    there other processes must survive."""
    found = False
    while children := Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        for child in map(int, children):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        found = True
    return found


def _judge(reply: dict[str, Any], result: bytes, seal: bytes, left_over: bool) -> dict[str, Any]:
    """The reply with a value or an error, never both. `dirty`: whether the child ended abnormally."""
    if reply.get("error"):
        return {**reply, "dirty": True}
    if left_over:
        return {**reply, "dirty": True, "error": "it left a process running"}
    if not result:
        return {**reply, "dirty": True, "error": f"it ended without an answer (status {reply['status']})"}
    body = result[4 + SEAL_BYTES :]
    if result[: 4 + SEAL_BYTES] != len(body).to_bytes(4, "big") + seal:
        return {**reply, "dirty": True, "error": "its answer was tampered with"}
    kind, text = body[:1], body[1:].decode("utf-8", "replace")
    return {**reply, "dirty": False, "value" if kind == b"v" else "error": text or "unknown error"}


def _child(perform: Perform, request: Any, result: int, seal: int, output: int) -> None:
    """Run a request in the forked child; never returns."""
    home = os.getpid()
    try:
        _settle(request, result, seal, output)
        kind, text = perform()
        while os.getpid() != home:  # a forked copy must not answer; the server ends it
            signal.pause()
        body = kind + text.encode("utf-8", "replace")
        _write(result, len(body).to_bytes(4, "big") + os.read(seal, SEAL_BYTES) + body)
    finally:
        os._exit(0)


def _settle(request: Any, result: int, seal: int, output: int) -> None:
    """Close the server's descriptors and set up the child's own input, output and limits."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = os.open(FOLDER, os.O_RDWR | os.O_TMPFILE, 0o600)
    _write(folder, request.get("stdin", "").encode("utf-8", "replace"))
    os.lseek(folder, 0, os.SEEK_SET)
    # a program's output is its answer, so errors are kept out of it
    errors = os.open(os.devnull, os.O_WRONLY) if request["mode"] == "script" else output
    for source, target in ((folder, 0), (output, 1), (errors, 2)):
        os.dup2(source, target)
    low, high = sorted((result, seal))
    for start, end in ((3, low), (low + 1, high), (high + 1, 64)):
        os.closerange(start, end)
    seconds = math.ceil(request["seconds"]) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the process
    # a grader's lines must have been written if it is killed; a program may print many
    buffering = 1 if request["mode"] == "grade" else -1
    sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False, buffering=buffering)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False, buffering=1)  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    sys.argv = ["program.py"]
    random.seed(0)


def _receive() -> Any:
    size = _read(4)
    return json.loads(_read(int.from_bytes(size, "big"))) if size else None


def _send(message: dict[str, Any]) -> None:
    body = json.dumps(message).encode()
    _write(1, len(body).to_bytes(4, "big") + body)


def _read(size: int) -> bytes:
    """Read exactly that many bytes from the parent, fewer only at the end of the input."""
    data = bytearray()
    while len(data) < size and (part := os.read(0, min(size - len(data), 2**20))):
        data += part
    return bytes(data)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


if __name__ == "__main__":
    serve()
