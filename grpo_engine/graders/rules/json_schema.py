"""JSON Schema (draft 2020-12) with a bound on work, for schemas from users and instances from models.

References stay inside the schema; keywords of unbounded cost are refused when the schema is checked;
`pattern` runs in RE2; `format` is an annotation, as in the standard. Schemas of tools are shown to a
model, and no value is checked against them.
"""

import json
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from jsonschema import Draft202012Validator, FormatChecker, SchemaError, ValidationError
from jsonschema.validators import extend

from grpo_engine.graders.pattern import compiled, matches
from grpo_engine.graders.samples import parts_of

MAX_SCHEMA_CHARACTERS = 32_768
MAX_WORK = 20_000
"""Maximum number of keyword evaluations, with a surcharge for large values; together about a second."""
CHARACTERS_OF_ONE, ENTRIES_OF_ONE, PAIRS_OF_ONE, STEPS_OF_ONE = 64, 16, 300, 100_000
"""How many of these cost as much as one evaluation: characters of a text; subschemas or names; the length of
a list times that of its text; a pattern's instructions times the characters that it is applied to."""
MAX_INSTRUCTIONS = 100_000
"""Maximum number of instructions of all different patterns of a schema together: each pattern is compiled."""
MAX_TYPES = 100
"""Maximum entries of a `type`, and of a list of `dependencies`, that are not all texts. They are compared in
pairs, and a valid list has none."""
_KNOWN_DRAFTS = ("2020-12", "2019-09", "draft-07")
_REFUSED = (
    "patternProperties",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$dynamicAnchor",
    "$recursiveRef",
    "$recursiveAnchor",
    "$anchor",
)
_ONE = ("items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_work_left: ContextVar[list[int]] = ContextVar("work_left")


class TooMuchWorkError(Exception):
    """The instance takes more than MAX_WORK to check."""


def check_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema, for which values can be checked. Raises ValueError if it is invalid or not supported."""
    check_shown_schema(schema)
    _check_draft(schema)
    sizes: dict[str, int] = {}
    checked = {id(subschema) for _, subschema in _subschemas(schema)}
    for place, subschema in _subschemas(schema):
        target = resolved(subschema["$ref"], schema) if "$ref" in subschema else True
        if not isinstance(target, bool) and id(target) not in checked:
            raise ValueError(
                f"{place}.$ref: {subschema['$ref']!r} must lead to a subschema, such as #/$defs/…"
            )
        _check_keywords(place, subschema, is_root=subschema is schema)
        if (pattern := subschema.get("pattern")) is not None and pattern not in sizes:
            sizes[pattern] = compiled(pattern).programsize
            if sum(sizes.values()) > MAX_INSTRUCTIONS:
                raise ValueError(f"{place}.pattern: the patterns have over {MAX_INSTRUCTIONS:,} instructions")
    return schema


def check_shown_schema(schema: dict[str, Any]) -> None:
    """Raise ValueError for a tool's schema that is too long, invalid, or refers to another document.

    No value is checked against it, so it may have any pattern and keyword.
    """
    try:
        text = json.dumps(schema, allow_nan=False, ensure_ascii=False)
        text.encode("utf-8")
        if len(text) > MAX_SCHEMA_CHARACTERS:
            raise ValueError(f"a schema has at most {MAX_SCHEMA_CHARACTERS} characters")
        _check_lists(schema)
        Draft202012Validator.check_schema(schema, format_checker=FormatChecker(()))
        for place, subschema in _subschemas(schema):
            _check_reference(place, subschema, schema)
    except RecursionError:
        raise ValueError("the schema is nested too deeply") from None
    except SchemaError as error:
        raise ValueError(f"{error.json_path.replace('$', 'schema', 1)}: {error.message[:200]}") from None


def conforms(instance: Any, schema: dict[str, Any]) -> bool:
    """Whether the instance fits a checked schema. Raises TooMuchWorkError."""
    token = _work_left.set([MAX_WORK])
    try:
        return bool(_validator(json.dumps(schema)).is_valid(instance))
    except RecursionError:
        raise TooMuchWorkError("nested too deeply") from None
    finally:
        _work_left.reset(token)


@lru_cache(maxsize=64)
def _validator(text: str) -> Draft202012Validator:
    schema = json.loads(text)
    # with `$schema`, jsonschema would use its own, unbounded class
    return _Bounded({key: value for key, value in schema.items() if key not in ("$schema", "$id")})


def _spend(amount: int) -> None:
    left = _work_left.get()
    left[0] -= amount
    if left[0] < 0:
        raise TooMuchWorkError(f"checking takes more than {MAX_WORK} steps")


def _bounded(name: str, keyword: Callable[..., Any]) -> Callable[..., Iterator[ValidationError]]:
    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        _spend(1 + _extra_cost(name, value))
        for error in keyword(validator, value, instance, schema) or ():
            _spend(len(error.message) // CHARACTERS_OF_ONE)
            yield error

    return check


def _extra_cost(name: str, value: Any) -> int:
    """Cost of a keyword beyond the evaluations of its subschemas."""
    if name in ("enum", "const"):  # each value is compared completely
        return len(str(value)) // CHARACTERS_OF_ONE
    return len(value) // ENTRIES_OF_ONE if isinstance(value, list | dict) else 0


def _multiple_of(validator: Any, step: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    try:
        yield from Draft202012Validator.VALIDATORS["multipleOf"](validator, step, instance, schema) or ()
    except OverflowError:  # an integer beyond float
        yield ValidationError("is too large to be divided")


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, str):
        return
    _spend(len(instance) * compiled(pattern).programsize // STEPS_OF_ONE)
    if not matches(pattern, instance, full=False):
        yield ValidationError("does not match the pattern")


def _unique_items(validator: Any, unique: bool, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if unique and isinstance(instance, list):
        _spend(len(instance) * len(str(instance)) // PAIRS_OF_ONE)
        yield from Draft202012Validator.VALIDATORS["uniqueItems"](validator, unique, instance, schema) or ()


_Bounded = extend(
    Draft202012Validator,
    {
        name: _bounded(name, keyword)
        for name, keyword in {
            **Draft202012Validator.VALIDATORS,
            "multipleOf": _multiple_of,
            "pattern": _pattern,
            "uniqueItems": _unique_items,
        }.items()
    },
)


def _check_draft(schema: dict[str, Any]) -> None:
    draft = schema.get("$schema")
    if draft is not None and not any(known in draft for known in _KNOWN_DRAFTS):
        raise ValueError(f"schema.$schema: use {', '.join(_KNOWN_DRAFTS)}, or leave it out")


def _check_lists(root: Any) -> None:
    """Raise ValueError for a list that would take minutes to check. JSON that is no schema is read too."""
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            listed = value.get("dependencies")
            for each in (value.get("type"), *(listed.values() if isinstance(listed, dict) else ())):
                if isinstance(each, list) and len(each) > MAX_TYPES and {*map(type, each)} != {str}:
                    raise ValueError(
                        f"a type or dependency has at most {MAX_TYPES} entries, all of them texts"
                    )
        waiting += parts_of(value)


def _subschemas(root: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every subschema that is an object, with its path."""
    waiting: list[tuple[str, Any]] = [("schema", root)]
    while waiting:
        place, schema = waiting.pop()
        if not isinstance(schema, dict):
            continue
        yield place, schema
        waiting += [(f"{place}.{key}", schema[key]) for key in _ONE if key in schema]
        waiting += [
            (f"{place}.{key}[{i}]", each) for key in _LISTS for i, each in enumerate(schema.get(key, ()))
        ]
        waiting += [(f"{place}.{key}.{k}", each) for key in _MAPS for k, each in schema.get(key, {}).items()]


def _check_keywords(place: str, schema: dict[str, Any], *, is_root: bool) -> None:
    refused = [*_REFUSED, *(() if is_root else ("$schema", "$id"))]
    if found := [key for key in refused if key in schema]:
        raise ValueError(f"{place}.{found[0]} is not supported")
    if "pattern" in schema:
        try:
            compiled(schema["pattern"])
        except ValueError as error:
            raise ValueError(f"{place}.pattern: {error}") from None


def _check_reference(place: str, schema: dict[str, Any], root: dict[str, Any]) -> None:
    if "$ref" in schema and not isinstance(resolved(schema["$ref"], root), dict | bool):
        raise ValueError(f"{place}.$ref: {schema['$ref']!r} must be # or #/… and lead to a subschema")


def resolved(ref: str, root: Any) -> Any:
    """The subschema that a reference inside the schema `root` points to; None if there is none."""
    if ref != "#" and not ref.startswith("#/"):
        return None
    target: Any = root
    for step in unquote(ref[2:]).split("/") if ref != "#" else ():
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list):
            target = next((each for place, each in enumerate(target) if str(place) == step), None)
        elif isinstance(target, dict) and step in target:
            target = target[step]
        else:
            return None
    return target
