"""`python -m tests.support.forking.server PROGRAM SOCKET`: forks a `python -m MODULE …` per request.

Each process has the environment, folder, output and arguments of its request, and runs the module from its
first line. Only what it imports is there already, and the sandbox's self-test is done: a second and a half
less per start. GRPO_FAULT must be set, so that fault points are there; each process reads its own faults.
"""

import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_engine.process import fault_points
from grpo_engine.process.fault_points import Faults, parse_faults
from grpo_engine.process.parent_death import end_with_parent

SERVICE = (
    "psycopg",
    "service.__main__",
    "service.app",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.h11_impl",
)
WORKER = (
    "celery.__main__",
    "celery.apps.worker",
    "celery.bin.celery",
    "celery.concurrency.prefork",
    "celery.fixups.django",
    "celery.worker.autoscale",
    "celery.worker.components",
    "celery.worker.consumer",
    "celery.worker.strategy",
    "kombu.transport.redis",
    "psycopg",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite",
    "worker.__main__",
)
MAX_REQUEST_BYTES = 2**20


def serve(requests: socket.socket) -> list[str]:
    """Fork for each request and report how each process ended. Returns in the child: its arguments."""
    with selectors.DefaultSelector() as ready:
        ready.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.data is not None:
                    ready.unregister(key.fileobj)
                    report(*key.data, pidfd=key.fd)
                    continue
                content, descriptors, _, _ = socket.recv_fds(requests, MAX_REQUEST_BYTES, 2)
                if not content:
                    sys.exit()
                request, (output, ending) = json.loads(content), descriptors
                parent = os.getpid()
                if (pid := os.fork()) == 0:
                    become(request, parent, output)
                    os.close(ending)
                    requests.close()
                    arguments: list[str] = request["arguments"]
                    return arguments
                os.close(output)
                os.write(ending, f"{pid}\n".encode())
                ready.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, ending))


def report(pid: int, ending: int, pidfd: int) -> None:
    """Reap an ended process and write its exit code."""
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.write(ending, f"{code}\n".encode())
    os.close(ending)
    os.close(pidfd)


def become(request: Mapping[str, Any], parent: int, output: int) -> None:
    end_with_parent(parent, signal.SIGKILL)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    faults = fault_points.fault_point
    assert isinstance(faults, Faults), "GRPO_FAULT of this process"
    faults.faults = parse_faults(os.environ.get("GRPO_FAULT", ""))
    marks = os.environ.get("GRPO_FAULT_MARKS")
    faults.marks = Path(marks) if marks else None


def main() -> None:
    requests = socket.socket(fileno=int(sys.argv[2]))
    for name in SERVICE if sys.argv[1] == "service" else WORKER:
        importlib.import_module(name)
    from grpo_engine.sandbox import self_test

    self_test()  # cached
    gc.collect()
    gc.freeze()
    module, *arguments = serve(requests)
    sys.argv = [module, *arguments]
    sys.modules.pop(module, None)  # else runpy warns
    sys.modules.pop(f"{module}.__main__", None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
