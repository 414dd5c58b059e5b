"""The part of a script that a reward function needs: the function, and the definitions that it uses.

Boundary: `rewards.py` makes a grader of it and refuses what the sandbox does not have.
"""

import ast
import builtins
import textwrap

from service.importing.script.bindings import Binding, Bindings, NotConstant, Scope

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def slice_of(text: str, bindings: Bindings, name: str, scope: Scope) -> str:
    """Source of the function with the imports, constants, functions and classes that it uses, in their order.

    Raises NotConstant for a name whose value depends on how the script runs.
    """
    found: dict[tuple[Scope, str], str] = {}
    lines: dict[tuple[Scope, str], int] = {}
    waiting: list[tuple[str, Scope]] = [(name, scope)]
    while waiting:
        wanted, where = waiting.pop()
        place = next((each for each in (where, None) if (each, wanted) in bindings.names), where)
        if (place, wanted) not in bindings.names or (place, wanted) in found:
            continue
        binding = bindings.names[place, wanted][-1]
        if binding.why_not or binding.index is not None:
            why = binding.why_not or "is not a literal"
            raise NotConstant(binding.node, f"`{wanted}`, which {name} uses, {why}")
        found[place, wanted] = _text(text, wanted, binding)
        lines[place, wanted] = binding.line
        waiting += [(each, place) for each in _free_names(bindings, binding)]
    ordered = sorted(found, key=lambda each: lines[each])
    return "\n\n".join(found[each] for each in ordered) + "\n"


def _free_names(bindings: Bindings, binding: Binding) -> set[str]:
    node = binding.node
    if isinstance(node, ast.Import | ast.ImportFrom):
        return set()
    used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} - vars(builtins).keys()
    own = (
        {bound for scope, bound in bindings.names if scope is node} if isinstance(node, _FUNCTIONS) else set()
    )
    return used - own


def _text(text: str, name: str, binding: Binding) -> str:
    """The statement that binds the name; an import is reduced to that name."""
    node = binding.node
    if isinstance(node, ast.Import | ast.ImportFrom):
        kept = [each for each in node.names if (each.asname or each.name.partition(".")[0]) == name]
        if isinstance(node, ast.Import):
            return ast.unparse(ast.Import(kept))
        return ast.unparse(ast.ImportFrom(node.module, kept, node.level))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        # Python's lines end at line feeds only, those of splitlines at form feeds too
        return textwrap.dedent("\n".join(text.split("\n")[first - 1 : node.end_lineno]))
    value = ast.get_source_segment(text, node) or ""
    # the segment lacks the parentheses around it, which keep several lines together
    return f"{name} = ({value})" if "\n" in value else f"{name} = {value}"
