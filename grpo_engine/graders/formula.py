"""The formula language of `multi`: `0.8*a + 0.2*min(b, 1)`.

Numbers, names, + - * / ^, parentheses and `FUNCTIONS`. `^` is right-associative and binds tighter than a
minus sign: -2^2 is -4. The tokens are checked here; Python's `ast` then groups them.

There is no eval: only the nodes in `_instruction` are accepted. Length and depth are bounded, and the tree is
walked and evaluated in loops, so no formula exhausts the stack.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

from grpo_engine.contract.records import LARGEST_REWARD, is_reward

MAX_CHARACTERS = 4096
MAX_DEPTH = 50


class FormulaError(ValueError):
    """The formula does not parse; the message gives the position, counted from 1."""


class EvaluationError(ArithmeticError):
    """The formula has no finite value for these variables."""


class Call(NamedTuple):
    """A postfix instruction: replace the last `arity` values with the result."""

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

_OPERATORS: dict[type[ast.operator], Call] = {
    ast.Add: Call("+", 2, operator.add),
    ast.Sub: Call("-", 2, operator.sub),
    ast.Mult: Call("*", 2, operator.mul),
    ast.Div: Call("/", 2, operator.truediv),
    ast.Pow: Call("^", 2, math.pow),
}
_SIGNS = {call.name for call in _OPERATORS.values()}
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign>[-+*/^(),])|(?P<end>$))"
)


class _Token(NamedTuple):
    kind: str
    text: str
    column: int

    @property
    def ends_operand(self) -> bool:
        return self.kind in ("number", "name") or self.text == ")"

    @property
    def python(self) -> str:
        """Python's spelling. The underscore keeps names apart from keywords."""
        if self.kind == "number":
            return repr(float(self.text))
        return f"_{self.text}" if self.kind == "name" else self.text.replace("^", "**")


@lru_cache(maxsize=256)
def parse(text: str) -> Formula:
    """Text → postfix code. Raises FormulaError."""
    if len(text) > MAX_CHARACTERS:
        raise FormulaError(f"a formula has at most {MAX_CHARACTERS} characters")
    tokens = _tokens(text)
    _check(tokens)
    # one token per line: a node's line number is that of its first token
    source = "(" + "\n".join(token.python for token in tokens) + ")"
    try:
        tree = ast.parse(source, mode="eval")
    except RecursionError:
        raise FormulaError("the formula has too many operations in a row") from None
    code = tuple(_postfix(tree.body, tokens))
    return Formula(code, frozenset(step for step in code if isinstance(step, str)))


def evaluate(formula: Formula, variables: Mapping[str, float]) -> float:
    """Value for these variables, which can be a reward. Raises EvaluationError if there is none."""
    stack: list[float] = []
    for step in formula.code:
        if isinstance(step, Call):
            operands = stack[-step.arity :]
            stack[-step.arity :] = [_apply(step, operands)]
        else:
            stack.append(variables[step] if isinstance(step, str) else step)
    if not is_reward(stack[0]):
        raise EvaluationError(f"the value {stack[0]:g} is beyond {LARGEST_REWARD:g}")
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
    return f" {call.name} ".join(texts) if call.name in _SIGNS else f"{call.name}({', '.join(texts)})"


def _tokens(text: str) -> list[_Token]:
    """All tokens; the last is the end."""
    tokens: list[_Token] = []
    position = 0
    while not tokens or tokens[-1].kind != "end":
        match = _TOKEN.match(text, position)
        if match is None:
            column = position + len(text[position:]) - len(text[position:].lstrip()) + 1
            raise FormulaError(f"{text[column - 1]!r} at character {column} is not part of a formula")
        kind = str(match.lastgroup)
        token = _Token(kind, match[kind], match.start(kind) + 1)
        if kind == "number" and math.isinf(float(token.text)):
            raise FormulaError(f"the number at character {token.column} is too large")
        tokens.append(token)
        position = match.end()
    return tokens


class _Bracket(NamedTuple):
    token: _Token
    is_call: bool
    depth: int
    """Depth of the operand that the bracket belongs to."""


def _check(tokens: list[_Token]) -> None:
    """Refuse tokens in a wrong order, unbalanced brackets and deep nesting, before Python parses them."""
    open_brackets: list[_Bracket] = []
    before, depth = _Token("sign", "", 0), 0
    for token in tokens:
        inner = open_brackets[-1] if open_brackets else None
        if depth > MAX_DEPTH:
            raise FormulaError(f"nested deeper than {MAX_DEPTH} at character {token.column}")
        if not _may_follow(before, token, inner):
            raise _unexpected(token)
        if token.text == "(":
            open_brackets.append(_Bracket(token, before.kind == "name", depth))
        if token.text in ("(", "^") or (token.text == "-" and not before.ends_operand):
            depth += 1
        elif token.text == ")":
            depth = open_brackets.pop().depth
        elif token.kind == "sign":
            depth = inner.depth + 1 if inner else 0
        before = token
    if open_brackets:
        raise FormulaError(f"( at character {open_brackets[-1].token.column} is not closed")


def _may_follow(before: _Token, token: _Token, inner: _Bracket | None) -> bool:
    if not before.ends_operand:
        return token.kind in ("number", "name") or token.text in ("(", "-")
    if token.text == "(":
        return before.kind == "name"
    if token.text in (")", ","):
        return inner is not None and (token.text == ")" or inner.is_call)
    return token.kind in ("sign", "end")


def _unexpected(token: _Token) -> FormulaError:
    if token.kind == "end":
        return FormulaError(f"the formula ends too early, at character {token.column}")
    return FormulaError(f"{token.text!r} at character {token.column} is not expected there")


def _postfix(root: ast.expr, tokens: list[_Token]) -> list[float | str | Call]:
    code: list[float | str | Call] = []
    pending = [root]
    while pending:
        node = pending.pop()
        step, operands = _instruction(node, tokens[node.lineno - 1].column)
        code.append(step)
        pending += operands
    return code[::-1]


def _instruction(node: ast.expr, column: int) -> tuple[float | str | Call, list[ast.expr]]:
    """The node's postfix instruction and its operands; `column` of its first character."""
    match node:
        case ast.Constant(value=float(number)):
            return number, []
        case ast.Name(id=name):
            if name[1:] in FUNCTIONS:
                raise FormulaError(f"function {name[1:]} at character {column} needs arguments")
            return name[1:], []
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return Call("-", 1, operator.neg), [operand]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)], [left, right]
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return _call(name[1:], len(arguments), column), arguments
    raise FormulaError(f"the expression at character {column} is not part of a formula")


def _call(name: str, num_given: int, column: int) -> Call:
    if name not in FUNCTIONS:
        raise FormulaError(f"unknown function {name} at character {column}; known: {', '.join(FUNCTIONS)}")
    function, arity = FUNCTIONS[name]
    if arity is not None and num_given != arity:
        raise FormulaError(f"{name} at character {column} takes {arity} argument, not {num_given}")
    # Python's min and max of a single value expect a sequence
    return Call(name, num_given, operator.pos if arity is None and num_given == 1 else function)
