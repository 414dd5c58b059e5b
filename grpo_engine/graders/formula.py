"""The formula language of `multi`: `0.8*a + 0.2*min(b, 1)`.

    sum      = product (("+" | "-") product)*
    product  = unary (("*" | "/") unary)*
    unary    = "-" unary | power
    power    = atom ("^" unary)?                  right-associative; -2^2 is -4
    atom     = number | name | name "(" sum ("," sum)* ")" | "(" sum ")"

Boundary: a tokenizer and a precedence-climbing parser that emits postfix code; no eval. Length and depth
are bounded, and evaluation runs in a loop, so no formula exhausts the stack.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

MAX_CHARACTERS = 4096
MAX_DEPTH = 50


class FormulaError(ValueError):
    """The formula does not parse; the message gives the position, counted from 1."""


class EvaluationError(ArithmeticError):
    """The formula has no finite value for these variables."""


class Call(NamedTuple):
    """A postfix instruction: take `arity` values, put one back."""

    name: str
    arity: int
    apply: Callable[..., float]


class Formula(NamedTuple):
    """A parsed formula."""

    code: tuple[float | str | Call, ...]
    """Postfix: a number, a variable's name, or a call."""
    variables: frozenset[str]


FUNCTIONS: dict[str, tuple[Callable[..., float], int | None]] = {
    "min": (min, None),
    "max": (max, None),
    "abs": (abs, 1),
    "floor": (math.floor, 1),
    "ceil": (math.ceil, 1),
    "exp": (math.exp, 1),
    "sqrt": (math.sqrt, 1),
    "log": (math.log, 1),
}
"""Name → function and its number of arguments (None: one or more). `log` is natural."""

_SUM, _PRODUCT, _UNARY, _POWER = 1, 2, 3, 4
_OPERATORS: dict[str, tuple[int, Callable[[float, float], float]]] = {
    "+": (_SUM, operator.add),
    "-": (_SUM, operator.sub),
    "*": (_PRODUCT, operator.mul),
    "/": (_PRODUCT, operator.truediv),
    "^": (_POWER, math.pow),
}
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign>[-+*/^(),])|(?P<end>$))"
)


class _Token(NamedTuple):
    kind: str
    text: str
    column: int


@lru_cache(maxsize=256)
def parse(text: str) -> Formula:
    """Text → postfix code. Raises FormulaError."""
    if len(text) > MAX_CHARACTERS:
        raise FormulaError(f"a formula has at most {MAX_CHARACTERS} characters")
    parser = _Parser(_tokens(text))
    parser.expression(_SUM, depth=0)
    parser.expect_end()
    names = frozenset(step for step in parser.code if isinstance(step, str))
    return Formula(tuple(parser.code), names)


def evaluate(formula: Formula, variables: Mapping[str, float]) -> float:
    """Value for these variables, always finite. Raises EvaluationError where there is none."""
    stack: list[float] = []
    for step in formula.code:
        if isinstance(step, Call):
            operands = stack[-step.arity :]
            stack[-step.arity :] = [_apply(step, operands)]
        else:
            stack.append(variables[step] if isinstance(step, str) else step)
    return stack[0]


def _apply(call: Call, operands: list[float]) -> float:
    try:
        value = float(call.apply(*operands))
    except (ZeroDivisionError, OverflowError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise EvaluationError(f"{_shown(call, operands)} has no finite value")
    return value


def _shown(call: Call, operands: list[float]) -> str:
    texts = [f"{operand:g}" for operand in operands]
    return f" {call.name} ".join(texts) if call.name in _OPERATORS else f"{call.name}({', '.join(texts)})"


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    position = 0
    while not tokens or tokens[-1].kind != "end":
        match = _TOKEN.match(text, position)
        if match is None:
            column = position + len(text[position:]) - len(text[position:].lstrip()) + 1
            raise FormulaError(f"{text[column - 1]!r} at character {column} is not part of a formula")
        kind = str(match.lastgroup)
        tokens.append(_Token(kind, match[kind], match.start(kind) + 1))
        position = match.end()
    return tokens


class _Parser:
    """Precedence climbing over tokens; `code` grows in postfix order."""

    def __init__(self, tokens: list[_Token]) -> None:
        self.tokens = tokens
        self.position = 0
        self.code: list[float | str | Call] = []

    def expression(self, least: int, depth: int) -> None:
        """An expression whose operators bind at least as tightly as `least`."""
        if depth > MAX_DEPTH:
            raise FormulaError(f"nested deeper than {MAX_DEPTH} at character {self._peek().column}")
        self._prefix(depth)
        while (found := _OPERATORS.get(self._peek().text)) is not None and found[0] >= least:
            sign = self._next().text
            # Behind `^` a sign may stand (2^-1) and another `^` belongs to the right (2^3^2 = 2^9).
            self.expression(_UNARY if sign == "^" else found[0] + 1, depth + 1)
            self.code.append(Call(sign, 2, found[1]))

    def expect_end(self) -> None:
        if self._peek().kind != "end":
            raise self._unexpected(self._peek())

    def _prefix(self, depth: int) -> None:
        token = self._next()
        if token.kind == "number":
            self.code.append(_number(token))
        elif token.kind == "name":
            self._name(token, depth)
        elif token.text == "-":
            self.expression(_UNARY, depth + 1)
            self.code.append(Call("-", 1, operator.neg))
        elif token.text == "(":
            self.expression(_SUM, depth + 1)
            self._close(token)
        else:
            raise self._unexpected(token)

    def _name(self, token: _Token, depth: int) -> None:
        if self._peek().text != "(":
            if token.text in FUNCTIONS:
                raise FormulaError(f"function {token.text} at character {token.column} needs arguments")
            self.code.append(token.text)
            return
        if token.text not in FUNCTIONS:
            known = ", ".join(FUNCTIONS)
            raise FormulaError(f"no function {token.text} at character {token.column}: there are {known}")
        function, arity = FUNCTIONS[token.text]
        num_given = self._arguments(depth)
        if arity is not None and num_given != arity:
            raise FormulaError(
                f"{token.text} at character {token.column} takes {arity} argument, not {num_given}"
            )
        # min and max of a single value: Python's would look for a sequence.
        self.code.append(
            Call(token.text, num_given, operator.pos if arity is None and num_given == 1 else function)
        )

    def _arguments(self, depth: int) -> int:
        opening = self._next()
        num_given = 1
        self.expression(_SUM, depth + 1)
        while self._peek().text == ",":
            self._next()
            self.expression(_SUM, depth + 1)
            num_given += 1
        self._close(opening)
        return num_given

    def _close(self, opening: _Token) -> None:
        if self._peek().kind == "end":
            raise FormulaError(f"( at character {opening.column} is not closed")
        if self._peek().text != ")":
            raise self._unexpected(self._peek())
        self._next()

    def _peek(self) -> _Token:
        return self.tokens[self.position]

    def _next(self) -> _Token:
        token = self.tokens[self.position]
        if token.kind != "end":
            self.position += 1
        return token

    def _unexpected(self, token: _Token) -> FormulaError:
        if token.kind == "end":
            return FormulaError(f"the formula ends too early, at character {token.column}")
        return FormulaError(f"{token.text!r} at character {token.column} is not expected there")


def _number(token: _Token) -> float:
    value = float(token.text)
    if not math.isfinite(value):
        raise FormulaError(f"the number at character {token.column} is too large")
    return value
