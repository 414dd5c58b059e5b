"""Types of a tool's arguments, for formats that write every value as text.

The reader of transformers looks only at `type`, `anyOf` and `oneOf`, but servers that use pydantic refer to
nested models and enums with `$ref`. Schemas of agents are unchecked, so anything may be in them.
"""

from collections.abc import Mapping
from typing import Any

from grpo_engine.graders.rules.json_schema import resolved

_UNIONS = ("anyOf", "oneOf", "allOf")
_TYPES = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


def with_types(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The function's schema with the types of each argument in place of the argument's schema."""
    function: Any = tool.get("function")
    parameters = function.get("parameters") if isinstance(function, Mapping) else None
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    if not isinstance(properties, Mapping):
        return dict(tool)
    types = {name: {"type": _types(schema, parameters)} for name, schema in properties.items()}
    return {"function": {**function, "parameters": {"properties": types}}}


def _types(schema: Any, root: Any) -> list[str]:
    """Types that a schema allows, in its order; references are followed once, however many there are."""
    found: list[str] = []
    seen: set[str] = set()
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if not isinstance(each, Mapping):
            continue
        declared, ref = each.get("type"), each.get("$ref")
        choices = [choice for union in _UNIONS for choice in _listed(each.get(union))]
        if isinstance(ref, str) and ref not in seen:
            seen.add(ref)
            choices.append(resolved(ref, root))
        values = [each["const"]] if "const" in each else _listed(each.get("enum"))
        own = [declared] if isinstance(declared, str) else _listed(declared)
        found += own or [_TYPES[type(value)] for value in values if not choices]
        waiting += reversed([*choices, *([{"type": "null"}] if each.get("nullable") else [])])
    return found


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
