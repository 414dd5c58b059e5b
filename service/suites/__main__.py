"""The child process: reads a dataset from standard input, writes its rows to standard output; or lists tasks.

Its last line on standard error is a JSON report or an error. A dataset's options come from a tenant, and some
generators were not written for that (one opens a file that its options name). So this process has limits of
memory, time and output, opens no file but those of installed packages, and starts nothing.
"""

import dataclasses
import difflib
import errno
import json
import os
import random
import re
import resource
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, TextIO

from grpo_engine.graders.suites.reasoning_gym import PLOTS
from grpo_engine.sandbox.launch import package_folders
from service.suites.child_process import LIMIT_SECONDS
from service.suites.models import INSTALL, SEED_STEP, ReasoningGymDataset, SuiteError

MAX_MEMORY_BYTES = 2 * 2**30
MAX_CHECKED = 200
"""Number of rows whose own answers are scored."""
NUM_CLOSEST = 3
_REFUSED = re.compile(r"(subprocess|socket|ctypes)\.|os\.(exec|fork|posix_spawn|spawn|system)")
"""Audit events of what a generator never needs."""


def main() -> None:
    given = json.load(sys.stdin)
    report, rows = os.fdopen(os.dup(2), "w"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):  # generators print
        os.dup2(nowhere, descriptor)
    limit(given["max_bytes"])
    # importing them would also leave a folder of fonts in /tmp
    sys.modules.update({name: ModuleType(name) for name in PLOTS})
    try:
        if given["dataset"] is None:
            found: dict[str, Any] = {"tasks": list_tasks()}
        else:
            found = write_rows(ReasoningGymDataset.model_validate(given["dataset"]), rows)
    except SuiteError as error:
        found = {"error": {"where": error.where, "message": str(error), "code": error.code}}
    except (MemoryError, OSError) as error:
        reason = str(error)
        if isinstance(error, MemoryError):
            reason = "generating the rows needs more than 2 GiB of memory"
        elif error.errno == errno.EFBIG:
            reason = f"the rows have more than {given['max_bytes']:,} bytes"
        found = {"error": {"where": "", "message": reason}}
    print(json.dumps(found), file=report, flush=True)
    os._exit(0)  # at a normal exit, the rest of the rows would be written to a file that may be full


def limit(max_bytes: int) -> None:
    """Limit memory, processor time and the file of rows."""
    limits = {
        resource.RLIMIT_AS: MAX_MEMORY_BYTES,
        resource.RLIMIT_CPU: LIMIT_SECONDS + 5,  # after the parent's limit, which is reported
        resource.RLIMIT_FSIZE: max_bytes,
        resource.RLIMIT_CORE: 0,
    }
    for kind, value in limits.items():
        resource.setrlimit(kind, (value, value))


def confine() -> None:
    """Refuse to open files other than installed packages, to write, to connect and to start processes."""
    folders = tuple(
        f"{os.path.realpath(path)}/" for path in (*package_folders(), sysconfig.get_path("stdlib"))
    )

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and not isinstance(path := arguments[0], int):
            writes = (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            is_refused = bool(writes) or not os.path.realpath(os.fsdecode(path)).startswith(folders)
        else:
            is_refused = _REFUSED.match(event) is not None
        if is_refused:
            raise PermissionError(f"{event} is not allowed here")

    sys.addaudithook(watch)


def _suite() -> Any:
    """The module with the tasks. Raises SuiteError if the package is missing."""
    try:
        from grpo_engine.graders.suites import reasoning_gym_tasks
    except ImportError as error:
        reason = f"Reasoning Gym is missing ({error}); install it where the API runs: {INSTALL}"
        raise SuiteError("", reason, "reasoning_gym_missing") from error
    return reasoning_gym_tasks


def list_tasks() -> list[dict[str, Any]]:
    """Name and number of levels (null without a curriculum) of each task. Raises SuiteError."""
    suite = _suite()
    return [
        {"task": task, "levels": _num_levels(suite, task) if task in suite.CURRICULA else None}
        for task in sorted(_names(suite))
    ]


def _names(suite: Any) -> set[str]:
    """The tasks, without the mixture, whose options are objects without a JSON form."""
    return set(suite.DATASETS) - {"composite"}


def _num_levels(suite: Any, task: str) -> int:
    attributes = suite.CURRICULA[task]().attributes.values()
    return max((len(each.levels) for each in attributes), default=1)


def write_rows(dataset: ReasoningGymDataset, rows: TextIO) -> dict[str, Any]:
    """Write the rows; returns the report on their own answers. Raises SuiteError."""
    suite = _suite()
    confine()
    _check_names(dataset, suite)
    report: dict[str, Any] = {"checked": 0, "wrong": 0}
    step = -(-dataset.size // MAX_CHECKED)
    for number, (row, made) in enumerate(_rows(dataset, suite)):
        rows.write(json.dumps(row, ensure_ascii=False) + "\n")
        if number % step == 0:
            report["checked"] += 1
            if (score := _own_score(made, row, suite)) != 1:
                report = {"line": number + 1, "answer": row["answer"], "score": score} | report
                report["wrong"] += 1
    rows.flush()
    return report


def _check_names(dataset: ReasoningGymDataset, suite: Any) -> None:
    """Raise SuiteError for an unknown task, an unknown or fixed option, or too many levels."""
    task, levels = dataset.task, dataset.levels
    if task not in (tasks := _names(suite)):
        _refuse_unknown("task", task, tasks, "the tasks")
    names = {each.name for each in dataclasses.fields(suite.DATASETS[task][1])}
    fixed = {"size": "set dataset.size", "seed": "set dataset.seed"}
    if levels is not None:
        if task not in suite.CURRICULA:
            raise SuiteError("levels", f"{task} has no curriculum")
        if levels > (most := _num_levels(suite, task)):
            raise SuiteError("levels", f"must be at most {most}, the levels of {task}'s curriculum")
        if levels > dataset.size:
            raise SuiteError("levels", f"must be at most dataset.size, {dataset.size}")
        for each in suite.CURRICULA[task]().attributes.values():
            for field in ("field_name", "lower_field_name", "upper_field_name"):
                fixed[getattr(each, field, "")] = "the levels set it"
    for name in dataset.config:
        if name in fixed:
            raise SuiteError(f"config.{name}", fixed[name])
        if name not in names:
            _refuse_unknown(f"config.{name}", name, names, f"the options of {task}")


def _refuse_unknown(where: str, name: str, known: set[str], noun: str) -> None:
    close = difflib.get_close_matches(name, sorted(known), NUM_CLOSEST)
    shown = f"did you mean {' or '.join(close)}?" if close else f"{noun} are {', '.join(sorted(known))}"
    raise SuiteError(where, f"{name!r} is unknown: {shown}")


def _rows(dataset: ReasoningGymDataset, suite: Any) -> Iterator[tuple[dict[str, Any], Any]]:
    """The rows, each with its generator. Raises SuiteError."""
    first, number = dataset.seed * SEED_STEP, 0
    levels = [None] if dataset.levels is None else list(range(dataset.levels))
    for place, level in enumerate(levels, 1):
        size = dataset.size * place // len(levels) - number
        random.seed(first + number)  # a few generators draw from it
        try:
            made = suite.make_task(dataset.task, dataset.config, level, seed=first + number, size=size)
            for index in range(size):
                yield _row(dataset, level, made[index]), made
        except (MemoryError, OSError):
            raise
        except Exception as error:
            message = str(error) or type(error).__name__
            named = [f"config.{name}" for name in dataset.config if name in message]
            where = next(iter(named), "config" if level is None else "levels")
            raise SuiteError(where, f"{dataset.task} refuses it: {message[:500]}") from error
        number += size


def _own_score(made: Any, row: Mapping[str, Any], suite: Any) -> float:
    try:
        return float(suite.score(made, row["answer"], row))
    except Exception:  # noqa: BLE001 - as the grader
        return 0.0


def _row(dataset: ReasoningGymDataset, level: int | None, entry: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the file, in JSON's types."""
    system = [{"role": "system", "content": dataset.system_prompt}] if dataset.system_prompt else []
    row = {
        "messages": [*system, {"role": "user", "content": entry["question"]}],
        "answer": entry["answer"],
        **({} if level is None else {"level": level}),
        "reasoning_gym": {"task": dataset.task, "config": dataset.config, "metadata": entry["metadata"]},
    }
    plain: dict[str, Any] = json.loads(json.dumps(row, default=_plain))
    return plain


def _plain(value: Any) -> Any:
    """A value without a JSON form: numpy's as Python's, a set as a list, others as their text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return sorted(value) if isinstance(value, set | frozenset) else str(value)


if __name__ == "__main__":
    main()
