"""A grading process: reads requests from its parent (`messages.py`) and answers each with a line.

It enforces no deadline: the parent does, and kills this process and all it started. `child.py` runs it as
`python -m grpo_engine.graders.pool.server`.
"""

import contextlib
import json
import os
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import TypeAdapter

from grpo_engine.graders import Grader
from grpo_engine.graders.base import GraderBase
from grpo_engine.graders.pool.messages import grade_safely, read_sample
from grpo_engine.process import deadline
from grpo_engine.process.parent_death import end_with_parent

MAX_MEMORY_BYTES = 4 * 2**30
"""Limit of the address space, so that a number such as 9^9^9^9 fails the grader and not the machine."""


def main(prepare: Callable[[], None] = lambda: None) -> None:
    """Serve the parent until it closes the connection. `prepare`: called first; its error is reported."""
    with _connection() as (requests, answers):
        start_message = json.loads(requests.readline())
        end_with_parent(start_message["parent"])
        try:
            prepare()
            graders = load(start_message["graders"])
            _limit()
        except Exception as error:  # noqa: BLE001 - the parent reports it
            _write(answers, {"error": f"{type(error).__name__}: {error}"[:1000]})
            return
        _write(answers, {"ready": True})
        for line in requests:
            _write(answers, answer(graders, json.loads(line)))


def load(graders: Mapping[str, Any]) -> dict[str, GraderBase]:
    """Graders by key, ready to grade. Raises what their libraries raise."""
    adapter: TypeAdapter[GraderBase] = TypeAdapter(Grader)
    loaded = {key: adapter.validate_python(data) for key, data in graders.items()}
    for grader in loaded.values():
        grader.prepare()
    return loaded


def answer(graders: Mapping[str, GraderBase], request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer to one request."""
    with deadline.within(request["seconds"]):
        score = grade_safely(graders[request["grader"]], read_sample(request["sample"]), request["item"])
    return {"id": request["id"], "score": score.model_dump()}


@contextlib.contextmanager
def _connection() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Files to read from and to write to. Standard input and output become /dev/null, so prints are lost."""
    incoming, outgoing = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    with os.fdopen(incoming, "rb") as requests, os.fdopen(outgoing, "wb") as answers:
        yield requests, answers


def _write(answers: BinaryIO, data: Mapping[str, Any]) -> None:
    answers.write(json.dumps(data).encode() + b"\n")
    answers.flush()


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # CUDA alone, which a reward model may use, reserves more address space than that
    if "torch" not in sys.modules:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = MAX_MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MAX_MEMORY_BYTES, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    # if memory runs out, the kernel kills this process before the training; some containers forbid the
    # setting
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    main()
