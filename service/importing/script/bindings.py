"""Finds the binding of a name in a script: an assignment, function, class or import, by scope and line.

Boundary: syntax only; `constants.py` computes values.
"""

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

Scope = ast.FunctionDef | ast.AsyncFunctionDef | None
"""A function, or None for the module."""


class NotConstant(Exception):
    """The value of an expression is not in the script's text."""

    def __init__(self, node: ast.AST, why: str) -> None:
        self.line = getattr(node, "lineno", 0)
        super().__init__(f"line {self.line}: {why}")


@dataclass(frozen=True)
class Binding:
    """One place where a name gets a value."""

    node: ast.AST
    """The value, definition or import; the target itself if the value is unknown."""
    line: int
    """Last line of the binding. Only later lines use it, because a statement does not use what it binds."""
    scope: Scope
    why_not: str
    """Reason why the value is unknown; empty if it is known."""
    index: int | None = None
    """Position in the tuple that the value returns."""


@dataclass
class Bindings:
    """All bindings of a script. Create it with `of`."""

    names: dict[tuple[Scope, str], list[Binding]] = field(default_factory=dict)
    attributes: dict[tuple[Scope, str], list[tuple[str, Binding]]] = field(default_factory=dict)
    """Name of an object, which may be dotted → attributes that are set on it."""
    calls: list[tuple[ast.Call, Scope]] = field(default_factory=list)

    @classmethod
    def of(cls, tree: ast.Module) -> "Bindings":
        found = cls()
        found._statements(tree.body, None, "")
        return found

    def find(self, name: ast.Name, scope: Scope) -> Binding:
        """The binding that is in effect where the name is used. Raises NotConstant."""
        if scope is not None and (inside := self.names.get((scope, name.id))):
            return self._last(inside, name, before=name.lineno)
        outside = self.names.get((None, name.id), [])
        # a function is called after the module's statements
        return self._last(outside, name, before=None if scope else name.lineno)

    def set_on(self, name: str, scope: Scope) -> list[tuple[str, Binding]]:
        """Attributes that are set on the object of this name, with their values, in the order of running.

        What another function sets on an object of the module is unknown, because it may never be called.
        """
        first = name.partition(".")[0]
        if scope is not None and (scope, first) in self.names:
            return self.attributes.get((scope, name), [])
        found = [*self.attributes.get((None, name), [])]
        for (where, changed), bindings in self.attributes.items():
            if where is None or changed != name or (where, first) in self.names:
                continue
            why = "" if where is scope else f"is set in the function {where.name}"
            found += [(attribute, replace(each, why_not=each.why_not or why)) for attribute, each in bindings]
        return found

    def _last(self, bindings: list[Binding], name: ast.Name, before: int | None) -> Binding:
        earlier = [each for each in bindings if before is None or each.line < before]
        if not earlier:
            raise NotConstant(name, f"`{name.id}` has no value in the script")
        if reason := earlier[-1].why_not:
            raise NotConstant(name, f"`{name.id}` {reason} (line {earlier[-1].line})")
        return earlier[-1]

    def _bind(self, name: str, node: ast.AST, scope: Scope, why: str, index: int | None = None) -> None:
        line = getattr(node, "end_lineno", 0)
        self.names.setdefault((scope, name), []).append(Binding(node, line, scope, why, index))

    def _statements(self, body: Iterable[ast.stmt], scope: Scope, why: str) -> None:
        """`why`: the reason why these statements may not run, or run more than once."""
        for statement in body:
            match statement:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self._bind(statement.name, statement, scope, why)
                    arguments = statement.args
                    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                        self._bind(each.arg, each, statement, f"is a parameter of {statement.name}")
                    self._statements(statement.body, statement, "")
                case ast.ClassDef():
                    self._bind(statement.name, statement, scope, why)
                case ast.Import() | ast.ImportFrom():
                    for alias in statement.names:
                        self._bind(alias.asname or alias.name.partition(".")[0], statement, scope, why)
                case _:
                    self._other(statement, scope, why)

    def _other(self, statement: ast.stmt, scope: Scope, why: str) -> None:
        for child in ast.iter_child_nodes(statement):
            if isinstance(child, ast.expr | ast.withitem):
                self.calls += [(node, scope) for node in ast.walk(child) if isinstance(node, ast.Call)]
        match statement:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._target(target, value, scope, why)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._target(target, value, scope, why)
            case ast.AugAssign(target=target):
                self._target(target, target, scope, "is changed")
            case ast.If(test=test, body=body, orelse=orelse):
                inside = why if _is_main(test) else "is set under a condition"
                self._statements(body, scope, inside)
                self._statements(orelse, scope, inside)
            case ast.For() | ast.AsyncFor() | ast.While():
                if not isinstance(statement, ast.While):
                    self._target(statement.target, statement.target, scope, "is set in a loop")
                self._statements([*statement.body, *statement.orelse], scope, "is set in a loop")
            case ast.With() | ast.AsyncWith():
                self._statements(statement.body, scope, why)
            case ast.Try():
                self._statements([*statement.body, *statement.orelse, *statement.finalbody], scope, why)
                for handler in statement.handlers:
                    self._statements(handler.body, scope, "is set under a condition")

    def _target(self, target: ast.expr, value: ast.expr, scope: Scope, why: str) -> None:
        match target:
            case ast.Name(id=name):
                self._bind(name, value, scope, why)
            case ast.Attribute(value=ast.Name() | ast.Attribute() as owner, attr=attribute):
                binding = Binding(value, value.end_lineno or 0, scope, why)
                self.attributes.setdefault((scope, ast.unparse(owner)), []).append((attribute, binding))
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
                for index, each in enumerate(targets):
                    if len(values) == len(targets):
                        self._target(each, values[index], scope, why)
                    elif isinstance(each, ast.Name):
                        self._bind(each.id, value, scope, why, index)


def _is_main(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and ast.unparse(test.left) == "__name__"
