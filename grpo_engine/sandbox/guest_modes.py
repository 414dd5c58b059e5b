"""How user code runs in a forked child inside the sandbox: as a grader, a function or a program.

`guest.py` receives this file's text from the parent, so it imports the standard library only. Hostile code in
the same process may replace any of it, so the parent checks every answer again.
"""

import atexit
import builtins
import contextlib
import json
import math
import sys
import threading
import traceback
import types
from typing import Any

MAX_DEPTH = 200
MAX_ERROR_CHARACTERS = 2000


def perform(request: Any, program: Any) -> tuple[bytes, str]:
    """Kind and text of the answer; an exception of user code becomes an error text."""
    try:
        value = _MODES[request["mode"]](request, program)
        return b"v", json.dumps(value, allow_nan=False)
    except BaseException as error:  # noqa: BLE001 - SystemExit and worse are answers here
        return b"e", _describe(error)
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()


def _describe(error: BaseException) -> str:
    """The end of the traceback, without this file's own frames."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith("<guest"):
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace, limit=-8, chain=False)
    return "".join(lines)[-MAX_ERROR_CHARACTERS:].strip()


def _module(name: str, program: Any) -> dict[str, Any]:
    """Run the user's code as a module of that name and return its namespace."""
    module = types.ModuleType(name)
    module.__dict__["__builtins__"] = builtins
    sys.modules[name] = module
    exec(program, module.__dict__)  # noqa: S102 - this is what the sandbox is for
    return module.__dict__


def _grade(request: Any, program: Any) -> Any:
    value = _module("grader", program)["grade"](request["sample"], request["item"])
    if type(value) is not dict:
        return _number(value)
    if not {"score"} <= value.keys() <= {"score", "feedback"}:
        raise TypeError("grade() must return a number, or a dict of score and feedback")
    feedback = value.get("feedback", "")
    if type(feedback) is not str:
        raise TypeError(f"feedback must be a string, not {type(feedback).__name__}")
    return {"score": _number(value["score"]), "feedback": feedback}


def _number(value: Any) -> int | float:
    if type(value) is not int and type(value) is not float:
        raise TypeError(f"grade() must return a number, not {type(value).__name__}")
    if not math.isfinite(value):
        raise ValueError(f"grade() returned {value}, not a finite number")
    return value


def _call(request: Any, program: Any) -> Any:
    """Value of `name(*args, **kwargs)`, or of `Class.method` on an instance created without arguments."""
    first, *rest = request["call"].split(".")
    namespace = _module("solution", program)
    if first not in namespace:
        raise NameError(f"name {first!r} is not defined")
    target = namespace[first]
    for name in rest:
        target = getattr(target() if isinstance(target, type) else target, name)
    return _plain(target(*request["args"], **request["kwargs"]), MAX_DEPTH)


def _plain(value: Any, depth: int) -> Any:
    """The value as plain JSON types; a subclass's data is read without its own methods."""
    if depth == 0:
        raise ValueError("the value is nested too deeply")
    kind = type(value)
    if value is None or kind is bool:
        return value
    if issubclass(kind, int):
        return int.__add__(value, 0)
    if issubclass(kind, float):
        return float.__add__(value, 0.0)
    if issubclass(kind, str):
        return str.__str__(value)
    if issubclass(kind, list | tuple):
        walk = list.__iter__ if issubclass(kind, list) else tuple.__iter__
        return [_plain(each, depth - 1) for each in walk(value)]
    if issubclass(kind, dict):
        plain = {_key(key): _plain(each, depth - 1) for key, each in dict.items(value)}
        if len(plain) != dict.__len__(value):
            raise ValueError("two keys of a dict, such as 1 and '1', have the same JSON form")
        return plain
    raise TypeError(f"{kind.__name__} has no JSON form")


def _key(key: Any) -> str:
    if type(key) is str:
        return key
    if key is None or type(key) in (bool, int, float):
        return json.dumps(key)
    raise TypeError(f"a dict key of type {type(key).__name__} has no JSON form")


def _script(request: Any, program: Any) -> None:
    """Run the code as a program; `sys.exit(0)` is a normal end."""
    try:
        _module("__main__", program)
    except SystemExit as stop:
        if stop.code not in (None, 0):
            raise
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()


_MODES = {"grade": _grade, "call": _call, "script": _script}
