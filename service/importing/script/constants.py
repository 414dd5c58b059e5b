"""Values of a script's expressions: literals, arithmetic, f-strings, constants, fields of dataclasses.

Boundary: computes on the syntax tree; calls nothing of the script. Results are bounded in size.
"""

import ast
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from service.importing.script.bindings import Binding, Bindings, NotConstant, Scope

MAX_LENGTH = 100_000
MAX_NUMBER = 10**30
_FORMAT = re.compile(r"[<>^+]?\d{0,2}(,|_)?(\.\d{1,2})?[a-zA-Z%]?")
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_CONVERSIONS: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "str": str, "bool": bool}
_NAMESPACES = ("torch", "TaskType")
"""Objects whose members are read as their names, such as `torch.bfloat16` and `TaskType.CAUSAL_LM`."""


@dataclass(frozen=True)
class Located:
    """An expression or definition, and the scope of its names."""

    node: ast.AST
    scope: Scope
    index: int | None = None


@dataclass(frozen=True)
class Constants:
    bindings: Bindings

    def named(self, found: Located) -> tuple[list[tuple[str, Scope]], Located]:
        """The names that lead to a node, and that node, which is no name. Raises NotConstant."""
        names = []
        while isinstance(found.node, ast.Name):
            names.append((found.node.id, found.scope))
            binding = self.bindings.find(found.node, found.scope)
            found = Located(binding.node, binding.scope, binding.index)
        return names, found

    def followed(self, found: Located) -> Located:
        """The node that a name is bound to; other nodes are returned unchanged. Raises NotConstant."""
        return self.named(found)[1]

    def set_on(self, found: Located) -> list[tuple[str, Binding]]:
        """Attributes set on an object, under all of its names, in running order. Raises NotConstant."""
        names, _ = self.named(found)
        return [setting for name in reversed(names) for setting in self.bindings.set_on(*name)]

    def value(self, found: Located) -> Any:
        """The expression's value, with lists for tuples. Raises NotConstant."""
        try:
            return self._value(found.node, found.scope)
        except (TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise NotConstant(found.node, f"`{source_of(found.node)}`: {error}") from None
        except RecursionError:
            raise NotConstant(found.node, "too deeply nested") from None

    def _value(self, node: ast.AST, scope: Scope) -> Any:
        match node:
            case ast.Constant(value=str() | int() | float() | None as value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._value(operand, scope)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self._value(operand, scope)
            case ast.BinOp(left=left, op=op, right=right):
                return self._computed(node, op, self._value(left, scope), self._value(right, scope))
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                return [self._value(part, scope) for part in parts]
            case ast.JoinedStr(values=parts):
                return "".join(self._formatted(part, scope) for part in parts)
            case ast.Subscript(value=inner, slice=key):
                return self._value(inner, scope)[self._value(key, scope)]
            case ast.Attribute():
                return self._attribute(node, scope)
            case ast.Name():
                found = self.followed(Located(node, scope))
                if found.index is None and isinstance(found.node, ast.expr):
                    return self._value(found.node, found.scope)
            case ast.Dict() | ast.Call(func=ast.Name(id="dict"), args=[]):
                return {key: self._value(each.node, each.scope) for key, each in self.entries(node, scope)}
            case ast.Call(func=ast.Name(id=name), args=[one], keywords=[]) if name in _CONVERSIONS:
                return _CONVERSIONS[name](self._value(one, scope))
        why = f"`{source_of(node)}` is neither a literal nor a constant of the script"
        raise NotConstant(node, why)

    def entries(self, node: ast.AST, scope: Scope) -> Iterator[tuple[str, Located]]:
        """Keys of a dict, or keyword arguments of a call, with their expressions; `**` is expanded.

        Raises NotConstant.
        """
        if isinstance(node, ast.Dict):
            pairs = list(zip(node.keys, node.values, strict=True))
        elif isinstance(node, ast.Call):
            pairs = [(each.arg and ast.Constant(each.arg), each.value) for each in node.keywords]  # type: ignore[misc]
        else:
            raise NotConstant(node, f"`{source_of(node)}` is not a dict that the script writes out")
        for key, value in pairs:
            if key is None:
                inner = self.followed(Located(value, scope))
                if isinstance(inner.node, ast.Call) and not _is_dict(inner.node):
                    raise NotConstant(
                        value, f"`{source_of(inner.node)}` is not a dict that the script writes out"
                    )
                yield from self.entries(inner.node, inner.scope)
            else:
                yield str(self._value(key, scope)), Located(value, scope)

    def _computed(self, node: ast.BinOp, op: ast.operator, left: Any, right: Any) -> Any:
        kinds = {type(left), type(right)}
        are_numbers = kinds <= {int, float, bool}
        if isinstance(op, ast.Pow) and are_numbers and abs(left) <= 1000 and abs(right) <= 64:
            result = left**right
        elif type(op) in _OPERATORS and (
            are_numbers or (kinds in ({str}, {list}) and isinstance(op, ast.Add))
        ):
            result = _OPERATORS[type(op)](left, right)
        else:
            raise NotConstant(node, f"`{source_of(node)}` is not computed here")
        if abs(result) > MAX_NUMBER if are_numbers else len(result) > MAX_LENGTH:
            raise NotConstant(node, f"`{source_of(node)}` is too large")
        return result

    def _formatted(self, part: ast.expr, scope: Scope) -> str:
        if not isinstance(part, ast.FormattedValue):
            return str(self._value(part, scope))
        shape = str(self._value(part.format_spec, scope)) if part.format_spec else ""
        if part.conversion != -1 or not _FORMAT.fullmatch(shape):
            raise NotConstant(part, "this format is not computed here")
        return format(self._value(part.value, scope), shape)

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Any:
        if isinstance(node.value, ast.Name):
            if node.value.id in _NAMESPACES:
                return node.attr
            if (field := self.field_of(node.value, node.attr, scope)) is not None:
                return self._value(field.node, field.scope)
        raise NotConstant(node, f"`{source_of(node)}` is neither a literal nor a constant of the script")

    def field_of(self, name: ast.Name, attribute: str, scope: Scope) -> Located | None:
        """The value of a field of a class of the script, or of an object of that class."""
        for set_name, binding in reversed(self.bindings.set_on(name.id, scope)):
            # a function is called after the module's statements
            is_earlier = binding.scope is not scope or binding.line < name.lineno
            if set_name == attribute and is_earlier:
                if binding.why_not:
                    raise NotConstant(
                        name, f"`{name.id}.{attribute}` {binding.why_not} (line {binding.line})"
                    )
                return Located(binding.node, binding.scope)
        found = self.followed(Located(name, scope))
        given: dict[str, Located] = {}
        kind = found
        if isinstance(found.node, ast.Call) and isinstance(found.node.func, ast.Name) and found.index is None:
            kind = self.followed(Located(found.node.func, found.scope))
            given = dict(self.entries(found.node, found.scope))
        if not isinstance(kind.node, ast.ClassDef):
            return None
        fields = dict(_fields(kind.node))
        if isinstance(found.node, ast.Call):
            positional = zip(fields, found.node.args, strict=False)
            given |= {each: Located(value, found.scope) for each, value in positional}
        default = fields.get(attribute)
        return given.get(attribute) or (Located(default, kind.scope) if default else None)


def _is_dict(call: ast.Call) -> bool:
    """`dict(name=value)`."""
    return isinstance(call.func, ast.Name) and call.func.id == "dict" and not call.args


def _fields(definition: ast.ClassDef) -> Iterator[tuple[str, ast.expr | None]]:
    """Fields of a dataclass or class attributes, with their defaults."""
    for statement in definition.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), value=value):
                yield name, _default(value)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value


def _default(value: ast.expr | None) -> ast.expr | None:
    """`field(default=1)` and `field(default_factory=lambda: [1])` → the default."""
    if not (isinstance(value, ast.Call) and source_of(value.func) in ("field", "dataclasses.field")):
        return value
    given = {each.arg: each.value for each in value.keywords}
    factory = given.get("default_factory")
    return given.get("default") or (factory.body if isinstance(factory, ast.Lambda) else None)


def source_of(node: ast.AST) -> str:
    """The node's text, shortened."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else f"{text[:59]}…"
