"""Dataset rows: JSON lines → checked rows, every fault located by line and field.

Rows stream: a file of any size needs the memory of one row.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from json import JSONDecodeError
from typing import Any, Literal

from grpo_engine.contract.strict_json import UNSTORABLE, NestingError, parse_document
from service.web.validation import syntax_reason

MAX_PROBLEMS = 100
MAX_LINE_BYTES = 8 * 2**20
MAX_DEPTH = 64
SHOWN_FIELDS, SHOWN_CHARACTERS = 6, 40
"""The part of a row's field names that a message quotes."""
_FILE = re.compile(r"(training|validation)_file|.*\.(retention)\[\d+\]\.file")
_LINE, _NUMBER = re.compile(r"\[\d+\]"), re.compile(r"\b\d[\d,.]*\b")
ENDS = {"user": "reinforcement", "assistant": "supervised"}
"""Role of a row's last message → the method that trains on such rows."""
ROLES = ("developer", "system", "user", "assistant", "tool")

Kind = Literal["reinforcement", "supervised"]


@dataclass(frozen=True)
class Problem:
    """A reason why a job is refused."""

    param: str
    """Dotted place such as `training_file[17].messages` (17 is the line, from 1)."""
    message: str
    code: str

    @property
    def kind(self) -> tuple[str, str]:
        """A value that is equal for problems that differ only in their line and numbers."""
        reason = self.message.removeprefix(self.param)
        return _LINE.sub("[]", self.param), _NUMBER.sub("#", reason)


@dataclass
class Problems:
    """The problems of a request: all are counted, the first hundred are kept."""

    found: list[Problem] = field(default_factory=list)
    total: int = 0
    _by_kind: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Counts of the kinds in `found`."""

    def add(self, param: str, reason: str, *, code: str | None = None) -> None:
        """Add a problem. Without `code`, it is that of the file with `param`, or else `invalid_value`."""
        file = _FILE.match(param)
        default = f"invalid_{file[1] or file[2]}_file" if file else "invalid_value"
        problem = Problem(param, f"{param}: {reason}", code or default)
        self.total += 1
        if len(self.found) < MAX_PROBLEMS:
            self.found.append(problem)
        elif problem.kind not in self._by_kind:
            return
        self._by_kind[problem.kind] += 1

    def extend(self, other: "Problems") -> None:
        """Append the problems of another part of the request."""
        self.found += other.found[: MAX_PROBLEMS - len(self.found)]
        self.total += other.total
        self._by_kind += other._by_kind

    def alike(self, problem: Problem) -> int:
        """Number of problems of the same kind as `problem`, which must be one of `found`."""
        return self._by_kind[problem.kind]

    def listed(self) -> list[dict[str, Any]]:
        """Each problem in `found` as the API shows it."""
        return [{"param": one.param, "message": one.message, "alike": self.alike(one)} for one in self.found]


@dataclass(frozen=True)
class Row:
    """One usable row. Exactly one of `messages` and `prompt` is given."""

    line: int
    """Line number in the file, from 1."""
    messages: tuple[dict[str, Any], ...] | None
    prompt: str | None
    completion: str | None
    """Given only in supervised rows that have a `prompt`."""
    tools: tuple[dict[str, Any], ...]
    item: Mapping[str, Any]
    """The item that graders see: the row without `messages` and `tools`."""


class RowError(Exception):
    """A row cannot be used. `where`: the field inside the row; empty for the whole row."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(reason)
        self.where = where
        self.reason = reason


def read_rows(
    lines: Iterable[bytes],
    *,
    file: str,
    kind: Kind,
    max_rows: int,
    problems: Problems,
    is_wanted: Callable[[int], bool] = lambda number: True,
) -> Iterator[Row]:
    """Usable rows in order, of the lines that are wanted; faults go to `problems` under `file[line]`.

    Blank lines are tolerated at the end only. Stops at the first row over `max_rows`; a file without a
    single row is a problem.
    """
    num_rows, blank_line = 0, None
    for number, line in enumerate(lines, start=1):
        content = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if not content.strip():
            blank_line = blank_line or number
            continue
        if blank_line is not None and is_wanted(blank_line):
            problems.add(f"{file}[{blank_line}]", "is blank: only lines at the end of the file may be")
        blank_line = None
        num_rows += 1
        if not is_wanted(number):
            continue
        if num_rows > max_rows:
            problems.add(file, f"has more than {max_rows} rows, the limit")
            return
        try:
            yield checked_row(parse_line(content), kind, number)
        except RowError as fault:
            problems.add(f"{file}[{number}]{fault.where and '.' + fault.where}", fault.reason)
    if num_rows == 0:
        problems.add(file, "has no rows")


def parse_line(line: bytes) -> dict[str, Any]:
    """One line → JSON object. Raises RowError."""
    if len(line) > MAX_LINE_BYTES:
        raise RowError("", f"is longer than {MAX_LINE_BYTES} bytes")
    try:
        value = parse_document(line.decode())
    except UnicodeDecodeError as error:
        raise RowError("", f"is not UTF-8 (byte {error.start + 1} of the line)") from error
    except NestingError as error:
        raise RowError("", f"is nested deeper than {MAX_DEPTH} levels") from error
    except JSONDecodeError as error:
        raise RowError("", f"is not JSON: {syntax_reason(error.msg, error.colno)}") from error
    except ValueError as error:
        raise RowError("", f"is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise RowError("", "is not a JSON object")
    if fault := _unusable(value, MAX_DEPTH):
        raise RowError("", fault)
    return value


def checked_row(row: dict[str, Any], kind: Kind, line: int) -> Row:
    """The row, checked and split into its fields. Raises RowError if the kind of training cannot use it."""
    if ("messages" in row) == ("prompt" in row):
        raise RowError("messages", _both_or_neither(row))
    tools = [] if row.get("tools") is None else row["tools"]
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        written = ", not their JSON as a string" if isinstance(tools, str) else ""
        raise RowError("tools", f"must be a list of objects{written}")
    item = {name: value for name, value in row.items() if name not in ("messages", "tools")}
    if "messages" in row:
        messages = _checked_messages(row["messages"], kind)
        return Row(line, messages, None, None, tuple(tools), item)
    prompt = _text(row, "prompt")
    completion = _text(row, "completion") if kind == "supervised" else None
    return Row(line, None, prompt, completion, tuple(tools), item)


def _both_or_neither(row: dict[str, Any]) -> str:
    if "messages" in row:
        return f"the row has both messages and prompt: give one of them ({_rename('prompt=OTHER_NAME')})"
    names = f"the row has neither messages nor prompt, but {_names(row)}"
    return f"{names}: give one of them ({_rename('FIELD=prompt')})"


def _names(fields: dict[str, Any]) -> str:
    return ", ".join(name[:SHOWN_CHARACTERS] for name in [*fields][:SHOWN_FIELDS]) or "no field"


def _rename(mapping: str) -> str:
    return f"`grpo files upload --map {mapping}` renames a field"


def _text(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    if name not in row:
        raise RowError(name, f"the row has no {name}, but {_names(row)} ({_rename(f'FIELD={name}')})")
    if isinstance(value, list):
        has_both = isinstance(row.get("completion"), list)
        hint = "write those of prompt and completion as one list" if has_both else _rename("prompt=messages")
        raise RowError(name, f"must be a string; a list of messages belongs in messages ({hint})")
    if not isinstance(value, str) or not value:
        raise RowError(name, "must be a non-empty string")
    return value


def _checked_messages(messages: Any, kind: Kind) -> tuple[dict[str, Any], ...]:
    if not isinstance(messages, list) or not messages:
        raise RowError("messages", "must be a list of at least one message")
    for index, message in enumerate(messages):
        _check_message(message, f"messages[{index}]")
    last, wanted = messages[-1], "user" if kind == "reinforcement" else "assistant"
    if last["role"] != wanted:
        hint = f": such rows are for the method {ENDS[last['role']]}" if last["role"] in ENDS else ""
        raise RowError("messages", f"the last message must have the role {wanted}, not {last['role']}{hint}")
    if kind == "supervised" and len(messages) == 1:
        raise RowError("messages", "must have a message before the assistant's")
    if kind == "supervised" and not last.get("content") and not last.get("tool_calls"):
        where = f"messages[{len(messages) - 1}].content"
        raise RowError(where, "must not be empty: it is what the model learns")
    if kind == "supervised" and last.get("weight") == 0:
        where = f"messages[{len(messages) - 1}].weight"
        raise RowError(where, "must not be 0: the model learns the last message. Remove it, or the row")
    return tuple(messages)


def _check_message(message: Any, where: str) -> None:
    if not isinstance(message, dict):
        raise RowError(where, "must be an object with role and content")
    if message.get("role") not in ROLES:
        role = json.dumps(message["role"])[:SHOWN_CHARACTERS] if "role" in message else ""
        given = f"not {role}" if role else f"but the message has {_names(message)}"
        raise RowError(f"{where}.role", f"must be one of {', '.join(ROLES)}, {given}")
    if message.get("function_call"):
        raise RowError(f"{where}.function_call", "is not supported: write the call in tool_calls")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise RowError(f"{where}.tool_calls", "must be a list of objects")
    content, calls_tools = message.get("content"), message["role"] == "assistant" and bool(calls)
    if isinstance(content, str) or (content is None and calls_tools):
        return
    if not isinstance(content, list) or not content or not all(_is_text_part(part) for part in content):
        raise RowError(f"{where}.content", 'must be a string or a list of {"type": "text", "text": …} parts')


def _is_text_part(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _unusable(value: Any, levels: int) -> str | None:
    """Why a value cannot be stored in a database or encoded as UTF-8; None if it can."""
    if isinstance(value, str) and (odd := UNSTORABLE.search(value)):
        return "contains a NUL character" if odd[0] == "\0" else "contains half of a surrogate pair"
    if not isinstance(value, list | dict):
        return None
    if levels == 0:
        return f"is nested deeper than {MAX_DEPTH} levels"
    parts = value if isinstance(value, list) else [*value, *value.values()]
    return next((fault for part in parts if (fault := _unusable(part, levels - 1))), None)
