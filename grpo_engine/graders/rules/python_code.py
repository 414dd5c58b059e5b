"""`python`: the user's own `grade(sample, item)`, run in a sandbox.

The source is parsed here but never executed in this process. It runs in bubblewrap if that works on this
machine, otherwise in pydantic-monty if that is installed, otherwise only if the operator allows it
(`sandbox/unsafe.py`).
"""

import ast
import atexit
import os
import re
import threading
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from grpo_engine.contract.records import Sample
from grpo_engine.graders.base import Graded, RewardGrader
from grpo_engine.graders.errors import UnscorableError
from grpo_engine.graders.printed import bounded
from grpo_engine.graders.untrusted_json import read_graded
from grpo_engine.process import deadline
from grpo_engine.sandbox import PythonServer, SandboxUnavailable, self_test
from grpo_engine.sandbox.monty import MontyServer, installed, subset_problems
from grpo_engine.sandbox.unsafe import allowed

MAX_SOURCE_BYTES = 256_000
_F_STRING = re.compile(r"\b(f|fr|rf)[\"']", re.IGNORECASE)
_MAX_F_STRING_WORK = 10**9
"""Bound on braces × characters. Before Python 3.12 the time to parse f-strings grows with this product; at
the bound it is 0.4 s."""
CALL_SECONDS = 120.0
"""OpenAI's limit for one call; the deadline of the grading pool is usually shorter."""


def _defines_grade(source: str) -> str:
    """The source. Raises ValueError with the line if it is not Python or defines no suitable `grade`."""
    if len(source.encode("utf-8", "replace")) > MAX_SOURCE_BYTES:
        raise ValueError(f"longer than {MAX_SOURCE_BYTES:,} bytes")
    if _F_STRING.search(source) and source.count("{") * len(source) > _MAX_F_STRING_WORK:
        raise ValueError("too many braces for a source of this length that has f-strings")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except SyntaxError as error:
        raise ValueError(f"line {error.lineno}: {error.msg}") from None
    except (RecursionError, MemoryError):
        raise ValueError("nested too deeply") from None
    for node in tree.body:
        if isinstance(node, ast.AsyncFunctionDef) and node.name == "grade":
            raise ValueError(f"line {node.lineno}: grade must not be async")
        if isinstance(node, ast.FunctionDef) and node.name == "grade":
            _takes_two(node)
            return source
    raise ValueError("must define grade(sample, item) at its top level")


def _takes_two(function: ast.FunctionDef) -> None:
    given = function.args
    places = len(given.posonlyargs) + len(given.args)
    needed = places - len(given.defaults)
    named_only = any(default is None for default in given.kw_defaults)
    if needed > 2 or named_only or (places < 2 and given.vararg is None):
        raise ValueError(f"line {function.lineno}: grade must take two arguments, sample and item")


class PythonGrader(RewardGrader):
    """Reward = what `grade(sample, item)` returns: a number, or `{"score": number, "feedback": text}`.

    `sample` has output_text, output_json, output_tools, choices[0].message, finish_reason, num_tokens and
    environment_reward (null without an environment); `item` is the dataset row. Standard library only, no
    network, 2 GiB, 2 minutes. Every call runs the source in its own process. An exception, or a result that
    is not a finite number up to 1e15, is an error and not 0. What it prints is in the job's log, up to 2,000
    characters a call and 64 KiB in all.
    """

    runs_in = "process"

    type: Literal["python"]
    source: Annotated[str, AfterValidator(_defines_grade)]
    """Python source that defines `grade(sample, item)`; standard library only, no network."""
    image_tag: str | None = None
    """OpenAI's container image; it is accepted, but has no effect."""

    def prepare(self) -> None:
        """Run the sandbox's self-test now, so that its time is not part of the first completion's."""
        self_test()

    def evaluate(self, sample: Sample, item: Mapping[str, Any]) -> Graded:
        limit = deadline.current()
        seconds = min(CALL_SECONDS, limit.seconds_left)
        try:
            outcome = _server(self.source).call(as_openai(sample), item, seconds)
        except SandboxUnavailable as error:
            raise UnscorableError("python_grader_server_error", str(error)) from None
        except (TypeError, ValueError, RecursionError) as error:
            raise UnscorableError("invalid_variable_error", f"the row has no JSON form: {error}") from None
        printed = bounded(outcome.output)
        if outcome.timed_out and seconds < CALL_SECONDS:
            late = f"no answer within {limit.seconds:g} seconds"
            raise UnscorableError("unresponsive_reward_error", late, printed)
        if outcome.value is None:
            raise UnscorableError("python_grader_runtime_error", outcome.error, printed)
        try:
            return read_graded(outcome.value)._replace(printed=printed)
        except ValueError as error:
            raise UnscorableError("python_grader_runtime_error", str(error), printed) from None


def as_openai(sample: Sample) -> dict[str, Any]:
    """The sample as OpenAI's python graders see it."""
    message: dict[str, Any] = {"role": "assistant", "content": sample.output_text}
    if sample.output_tools:
        message["tool_calls"] = list(sample.output_tools)
    return {**sample.model_dump(mode="json"), "choices": [{"message": message}]}


_Server = PythonServer | MontyServer
_MAX_SERVERS = 8
_servers: OrderedDict[tuple[int, str], _Server] = OrderedDict()
"""Keyed by process id and source, least recently used first. A forked process uses none of its parent's
servers."""
_lock = threading.Lock()


def _server(source: str) -> _Server:
    """The server for a source in this process; it ends with the process. Raises SandboxUnavailable."""
    key = os.getpid(), source
    with _lock:
        if key not in _servers:
            _servers[key] = _new_server(source)
        _servers.move_to_end(key)
        if len(_servers) > _MAX_SERVERS:
            _servers.popitem(last=False)[1].close()
        return _servers[key]


@atexit.register
def _close_servers() -> None:
    for (pid, _), server in _servers.items():
        if pid == os.getpid():
            server.close()


def _new_server(source: str) -> _Server:
    """The sandbox if it works, otherwise Monty if it is installed. A source beyond Monty's subset then runs
    without a sandbox if the operator allows that."""
    if self_test().available or not installed():
        return PythonServer(source)
    return PythonServer(source) if allowed() and subset_problems(source) else MontyServer(source)
