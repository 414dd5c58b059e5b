"""A model's process: loads it, listens for requests and reports to its worker until standard input ends.

The first line on standard input is a `ServedModel`. Reports (`protocol.py`) go to the given descriptor, so
that output of a library cannot mix with them. Jobs on the same machine take precedence: the process has the
lowest CPU priority and is killed first when memory runs out.
"""

import argparse
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from pydantic import BaseModel

from grpo_engine.chat.http_app import create_app, only
from grpo_engine.chat.http_server import HttpServer
from grpo_engine.contract.errors import EngineError
from grpo_engine.serve.open_requests import Model, OpenRequests
from grpo_engine.serve.protocol import Loaded, ServedModel, Unloadable, Working

NICENESS = 10


def serve(load: Callable[[ServedModel], Model], arguments: list[str] | None = None) -> int:
    """Exit status: 0 when standard input ends, 1 if the model cannot be served."""
    parser = argparse.ArgumentParser(prog="python -m grpo_engine.serve.serving", description=__doc__)
    parser.add_argument("--reports-to", type=int, required=True, metavar="FD", help="open for writing")
    options = parser.parse_args(arguments)
    _yield_to_jobs()
    with os.fdopen(options.reports_to, "w", encoding="utf-8") as out, suppress(BrokenPipeError):
        first = sys.stdin.readline()
        if not first:
            return 0
        served = ServedModel.model_validate_json(first)
        try:
            model = load(served)
        except EngineError as error:
            _write(out, Unloadable(code=error.code, message=error.message))
            return 1
        requests = OpenRequests(model, lambda num_open: _write(out, Working(num_open=num_open)))
        try:
            url = HttpServer(create_app(only(served.secret, requests)), served.host).url
        except OSError as error:
            message = f"cannot listen at GRPO_SERVE_HOST={served.host}: {error}"
            _write(out, Unloadable(code="model_unloadable", message=message))
            return 1
        threading.Thread(target=_stop_at_end, args=(requests,), name="input", daemon=True).start()
        _write(out, Loaded(url=url))
        requests.run()
    return 0


def _yield_to_jobs() -> None:
    """Lower this process's CPU priority, and make it the first to be killed when memory runs out."""
    os.nice(NICENESS)
    with suppress(OSError):  # Linux only
        Path("/proc/self/oom_score_adj").write_text("1000")


def _stop_at_end(requests: OpenRequests) -> None:
    """Stop when the worker has closed standard input."""
    sys.stdin.read()
    requests.stop()


def _write(out: TextIO, record: BaseModel) -> None:
    out.write(record.model_dump_json() + "\n")
    out.flush()
