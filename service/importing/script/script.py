"""A script while it is read: the fields, sources and lines of report that have been found so far.

Boundary: single expressions; `trainer.py` and the modules that it calls decide what to read.
"""

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from service.importing.rules import UNSET, Line
from service.importing.script.bindings import Binding, NotConstant, Scope
from service.importing.script.constants import Constants, Located, source_of
from service.importing.trl import RULES

_ANY_VALUE = {name for rule in RULES for name, default in rule.defaults.items() if default is UNSET}
"""Fields whose values do not matter."""


@dataclass
class Script:
    """Result of reading a script: configuration fields, sources of its rewards, and lines of report."""

    path: Path
    text: str
    constants: Constants
    fields: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    """Reward function → source of what it needs."""
    lines: list[Line] = field(default_factory=list)

    def callee(self, found: Located) -> str:
        """Full name of the called import, such as `trl.GRPOConfig`; empty for other calls."""
        if not isinstance(found.node, ast.Call) or found.index not in (None, 0):
            return ""
        head, dot, rest = ast.unparse(found.node.func).partition(".")
        imported = self.constants.bindings.names.get((None, head), [])
        for binding in imported:
            if isinstance(binding.node, ast.ImportFrom):
                for alias in binding.node.names:
                    if (alias.asname or alias.name) == head:
                        return f"{binding.node.module}.{alias.name}{dot}{rest}"
        return f"{head}{dot}{rest}"

    def refuse(self, name: str, node: ast.AST, why: str) -> None:
        self._report(name, node, "refused", why)

    def differs(self, name: str, node: ast.AST, why: str) -> None:
        self._report(name, node, "differs", why)

    def leaves(self, name: str, node: ast.AST, why: str) -> None:
        self._report(name, node, "not needed", why)

    def _report(self, name: str, node: ast.AST, verdict: Any, why: str) -> None:
        line = f"line {getattr(node, 'lineno', 0)}: "
        reason = why if why.startswith("line ") else line + why
        self.lines.append(Line((name,), (source_of(node),), verdict, why=reason))

    def take(self, name: str, value: Located) -> None:
        """The field's value, or the reason why it is unknown."""
        try:
            self.fields[name] = self.constants.value(value)
        except NotConstant as error:
            if name in _ANY_VALUE:
                self.fields[name] = source_of(value.node)
            else:
                self.refuse(name, value.node, str(error))

    def arguments(self, call: ast.Call, scope: Scope, positional: tuple[str, ...]) -> dict[str, Located]:
        """Names and expressions of a call's arguments; those that cannot be read are reported."""
        found = {}
        for index, each in enumerate(call.args):
            if isinstance(each, ast.Starred) or index >= len(positional):
                self.refuse(source_of(call.func), each, "name its arguments")
                break
            found[positional[index]] = Located(each, scope)
        try:
            return found | dict(self.constants.entries(call, scope))
        except NotConstant as error:
            self.refuse(source_of(call.func), call, str(error))
            named = {each.arg: Located(each.value, scope) for each in call.keywords if each.arg}
            return found | named

    def settings(self, value: Located) -> dict[str, Located]:
        """Attributes that the script sets on the object; those that cannot be read are reported."""
        return self.readable(self.constants.set_on(value))

    def readable(self, settings: Iterable[tuple[str, Binding]]) -> dict[str, Located]:
        """The last value of each attribute; those that cannot be read are reported."""
        found = {}
        for attribute, binding in settings:
            if binding.why_not:
                self.refuse(attribute, binding.node, f"{attribute} {binding.why_not}")
            else:
                found[attribute] = Located(binding.node, binding.scope)
        return found
