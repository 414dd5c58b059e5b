"""Reads what a shell script assigns, to its own variables and to the overrides of a command line.

Boundary: expands variables, defaults and arithmetic; runs nothing and reads no environment.
"""

import ast
import re
import shlex
from collections.abc import Iterator, Mapping

from service.importing.script.bindings import Bindings, NotConstant
from service.importing.script.constants import Constants, Located

_ASSIGNMENT = re.compile(r"\+{0,2}([A-Za-z_][\w.]*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-((?:[^{}]|\{[^{}]*\})*))?\})")
"""`$name`, `${name}` and `${name:-default}`."""
_ARITHMETIC = re.compile(r"\$\(\(((?:[^()]|\([^()]*\))*)\)\)")
"""`$((1024 * 2))`, with parentheses inside that are not nested."""
_NAME = re.compile(r"[A-Za-z_]\w*")


def assigned(script: str) -> Iterator[tuple[str, str]]:
    """Names and values of each `name=value`, in order; a name with a dot is an override."""
    variables: dict[str, str] = {}
    for line in script.replace("\\\n", " ").splitlines():
        for word in _words(line):
            if found := _ASSIGNMENT.fullmatch(word):
                value = _expanded(found[2], variables)
                yield found[1], value
                variables[found[1]] = value


def _words(line: str) -> list[str]:
    in_one_word = _ARITHMETIC.sub(lambda found: "".join(found[0].split()), line)
    try:
        return shlex.split(in_one_word, comments=True)
    except ValueError:  # a quotation over several lines, which no override needs
        return []


def _expanded(value: str, variables: Mapping[str, str]) -> str:
    """The value with all that is known; the rest of it is unchanged."""

    def of_variable(found: re.Match[str]) -> str:
        default = found[0] if found[3] is None else _expanded(found[3], variables)
        return variables.get(found[1] or found[2], default)

    filled = _VARIABLE.sub(of_variable, value)
    return _ARITHMETIC.sub(lambda found: _computed(found, variables), filled)


def _computed(arithmetic: re.Match[str], variables: Mapping[str, str]) -> str:
    numbers = _NAME.sub(lambda name: variables.get(name[0], name[0]), arithmetic[1])
    try:
        expression = ast.parse(numbers.replace("/", "//"), mode="eval").body
        return str(Constants(Bindings()).value(Located(expression, None)))
    except (SyntaxError, ValueError, NotConstant):
        return arithmetic[0]
