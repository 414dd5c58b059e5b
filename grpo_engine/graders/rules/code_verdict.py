"""The part of `code_tests` outside the sandbox: finds the code, reads the tests, compares results.

Nothing is executed here. A submission's results arrive as plain JSON types, so an `__eq__` that always
returns true gains it nothing.
"""

import math
import re
from itertools import chain
from typing import Annotated, Any

from pydantic import FailFast, Field, TypeAdapter, ValidationError

from grpo_engine.contract.records import Input, first_problem
from grpo_engine.contract.strict_json import parse_json
from grpo_engine.graders.feedback import excerpt

# possessive, so that a long line costs linear time
_FENCE = re.compile(r"( {0,3})(`{3,}+|~{3,}+)[ \t]*+([A-Za-z0-9_+-]*+)[^`\n]*+")
_PYTHON = ("python", "python3", "py")
_AFTER_TEXT = re.compile(r"(?<=[^\s`])(?=[ \t]*+```(?:python3?|py)[ \t\r]*+$)", re.M | re.I)
"""The end of a text before a fence on the same line."""
_DECIMAL = re.compile(r"[+-]?([0-9]++\.?[0-9]*+|\.[0-9]++)([eE][+-]?[0-9]++)?")


class CallTest(Input):
    """`call(*args, **kwargs)` returns `expected`."""

    call: str = Field(max_length=256, pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)*$")
    """A function, or `Class.method` of an instance created without arguments."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    expected: Any

    @property
    def request(self) -> dict[str, Any]:
        """The request to the sandbox; it holds no expected result."""
        return {"mode": "call", "call": self.call, "args": self.args, "kwargs": self.kwargs}

    @property
    def shown(self) -> str:
        named = [f"{name}={value!r}" for name, value in self.kwargs.items()]
        return f"{self.call}({', '.join([*map(repr, self.args), *named])})"

    def judge(self, value: str, output: str, tolerance: float) -> str:
        """The value if it is wrong; empty if it is right. `value` is untrusted JSON."""
        try:
            got = parse_json(value)
            return "" if same(got, self.expected, tolerance) else repr(got)
        except (ValueError, RecursionError) as error:
            return f"a value that cannot be read ({error})"

    @property
    def expectation(self) -> str:
        return repr(self.expected)


class StdinTest(Input):
    """The program, given `stdin`, prints `expected_stdout`; white space that ends a line does not count."""

    stdin: str
    expected_stdout: str

    @property
    def request(self) -> dict[str, Any]:
        return {"mode": "script", "stdin": self.stdin}

    @property
    def shown(self) -> str:
        return f"the program with input {excerpt(self.stdin)}"

    def judge(self, value: str, output: str, tolerance: float) -> str:
        """The output if it is wrong; empty if it is right."""
        return "" if same_text(output, self.expected_stdout, tolerance) else excerpt(output)

    @property
    def expectation(self) -> str:
        return excerpt(self.expected_stdout)


Test = CallTest | StdinTest
_TESTS: TypeAdapter[list[Test]] = TypeAdapter(Annotated[list[Test], Field(min_length=1), FailFast()])
"""Stops at the first wrong test: pydantic's errors for each test of a long row would take a gigabyte."""


def read_tests(text: str) -> list[Test]:
    """Tests of a row, from JSON. Raises ValueError."""
    data = parse_json(text)
    if isinstance(data, str):  # a row may hold its tests as JSON text in JSON
        data = parse_json(data)
    try:
        return _TESTS.validate_python(data)
    except ValidationError as error:
        place, message = first_problem(error)
        raise ValueError(f"{place or 'tests'}: {message}") from None


def code_of(text: str) -> str:
    """Code of the last Python block, otherwise of the last block without a language, otherwise the text.

    A block in a list is indented: as in CommonMark, its lines lose up to the indentation of its fence. If no
    line starts a Python block, one may start after other text, as in "Code:```python".
    """
    blocks = _blocks(text)
    if not any(language in _PYTHON for language, _ in blocks):
        blocks = _blocks(_AFTER_TEXT.sub("\n", text))
    python = [code for language, code in blocks if language in _PYTHON]
    plain = [code for language, code in blocks if not language]
    return (python or plain or [text])[-1]


def _blocks(text: str) -> list[tuple[str, str]]:
    """Language and content of each fenced block; the last one may be unfinished."""
    blocks: list[tuple[str, str]] = []
    lines: list[str] | None = None
    indent = mark = language = ""
    for line in text.replace("\r\n", "\n").split("\n"):
        fence = _FENCE.fullmatch(line.rstrip())
        if lines is None and fence is not None:
            indent, mark, language, lines = fence[1], fence[2], fence[3].lower(), []
        elif lines is not None and line.strip().startswith(mark) and not line.strip().strip(mark[0]):
            blocks.append((language, "\n".join(lines)))
            lines = None
        elif lines is not None:
            lines.append(line[: len(indent)].lstrip(" ") + line[len(indent) :])
    if lines is not None:  # cut off before its end
        blocks.append((language, "\n".join(lines)))
    return blocks


def same(got: Any, expected: Any, tolerance: float) -> bool:
    """Whether JSON values are equal, floats within the tolerance; true is not 1."""
    if isinstance(got, bool) or isinstance(expected, bool):
        return got is expected
    if isinstance(got, int | float) and isinstance(expected, int | float):
        return got == expected or (float in (type(got), type(expected)) and _close(got, expected, tolerance))
    if isinstance(got, list) and isinstance(expected, list):
        pairs = zip(got, expected, strict=False)
        return len(got) == len(expected) and all(same(a, b, tolerance) for a, b in pairs)
    if isinstance(got, dict) and isinstance(expected, dict):
        return got.keys() == expected.keys() and all(same(got[k], expected[k], tolerance) for k in got)
    return type(got) is type(expected) and bool(got == expected)


def same_text(got: str, expected: str, tolerance: float) -> bool:
    """Whether outputs are equal, decimal numbers within the tolerance."""
    ours, theirs = ([line.rstrip() for line in text.rstrip().split("\n")] for text in (got, expected))
    if ours == theirs:
        return True
    our_words, their_words = [line.split() for line in ours], [line.split() for line in theirs]
    if tolerance == 0 or [*map(len, our_words)] != [*map(len, their_words)]:
        return False
    pairs = zip(chain(*our_words), chain(*their_words), strict=True)
    return all(a == b or _same_decimal(a, b, tolerance) for a, b in pairs)


def _same_decimal(got: str, expected: str, tolerance: float) -> bool:
    if not (_DECIMAL.fullmatch(got) and _DECIMAL.fullmatch(expected)):
        return False
    fractional = any(mark in expected for mark in ".eE")
    return fractional and _close(float(got), float(expected), tolerance)


def _close(got: float, expected: float, tolerance: float) -> bool:
    try:
        return math.isfinite(got) and math.isclose(got, expected, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:  # an integer beyond float
        return False
