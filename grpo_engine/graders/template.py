"""The template language: `{{ item.path.to[0].field }}`, `{{sample.output_text}}`, `{{item["a key"]}}`.

A path starts with `item` (the dataset row) or `sample` (the completion), followed by `.name`, `[0]` or
`["any key"]`. A string is inserted unchanged, any other value as compact JSON. Values are never expanded
again, formatted or evaluated. There are no filters, no conditions and no escape for a literal `{{`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from grpo_engine.contract.records import Sample
from grpo_engine.graders.errors import UnscorableError

MAX_RENDERED_CHARACTERS = 2**22
_STEP = re.compile(r'\.([^\W\d]\w*)|\[(\d{1,9})\]|\["((?:[^"\\]|\\.)*)"\]|\[\'((?:[^\'\\]|\\.)*)\'\]')
_NAME = re.compile(r"\s*([^\W\d]\w*)?")
_END = re.compile(r"\s*\}\}")
_SAMPLE_FIELDS = tuple(Sample.model_fields)
_MISSING = object()


class Path(NamedTuple):
    """One `{{…}}`."""

    text: str
    """The expression without its braces: `item.answer`."""
    namespace: str
    steps: tuple[str | int, ...]


class TemplateError(ValueError):
    """The template is invalid; the message gives the position."""


@lru_cache(maxsize=256)
def parse(template: str) -> tuple[str | Path, ...]:
    """Literal texts and paths in order. Raises TemplateError."""
    parts: list[str | Path] = []
    position = 0
    while (start := template.find("{{", position)) >= 0:
        if start > position:
            parts.append(template[position:start])
        path, position = _parse_path(template, start)
        parts.append(path)
    if position < len(template):
        parts.append(template[position:])
    return tuple(parts)


def check(template: str) -> str:
    """The template, for pydantic. Raises TemplateError, a ValueError."""
    parse(template)
    return template


def render(template: str, sample: Sample, item: Mapping[str, Any]) -> str:
    """The text with every path replaced by its value. Raises UnscorableError if a path has none."""
    rendered: list[str] = []
    room = MAX_RENDERED_CHARACTERS
    for part in parse(template):
        text = part if isinstance(part, str) else _as_text(part, _look_up(part, sample, item))
        room -= len(text)
        if room < 0:
            raise UnscorableError("other_error", f"longer than {MAX_RENDERED_CHARACTERS} characters")
        rendered.append(text)
    return "".join(rendered)


def unresolved(template: str, item: Mapping[str, Any]) -> list[str]:
    """Paths into `item` that this row lacks, as written."""
    return [path.text for path in row_paths(template) if _walk(item, path.steps) is _MISSING]


def row_paths(template: str) -> list[Path]:
    """Its paths into `item`."""
    return [path for path in _paths(template) if path.namespace == "item"]


def uses_sample(template: str) -> bool:
    """Whether the text depends on the completion."""
    return any(path.namespace == "sample" for path in _paths(template))


def _paths(template: str) -> Iterator[Path]:
    return (part for part in parse(template) if isinstance(part, Path))


def _parse_path(template: str, start: int) -> tuple[Path, int]:
    """Path at `start` (its `{{`) and the position after its `}}`."""
    name = _NAME.match(template, start + 2)
    assert name is not None  # every part of it is optional
    namespace = name[1] or ""
    steps, position = _parse_steps(template, name.end())
    end = _END.match(template, position)
    if end is None:
        raise TemplateError(_syntax_error(template, start, position))
    text = template[name.end() - len(namespace) : position]
    if namespace not in ("item", "sample"):
        raise TemplateError(f"{{{{{text}}}}} must start with item or sample")
    if not steps:
        raise TemplateError(f"{{{{{text}}}}} must name a field, such as {{{{{namespace}.name}}}}")
    if namespace == "sample" and steps[0] not in _SAMPLE_FIELDS:
        raise TemplateError(f"{{{{{text}}}}} does not exist: sample has {', '.join(_SAMPLE_FIELDS)}")
    return Path(text, namespace, steps), end.end()


def _parse_steps(template: str, position: int) -> tuple[tuple[str | int, ...], int]:
    steps: list[str | int] = []
    while (step := _STEP.match(template, position)) is not None:
        name, index, double, single = step.groups()
        quoted = double if double is not None else single
        steps.append(
            name or (int(index) if index is not None else re.sub(r"\\(.)", r"\1", quoted, flags=re.S))
        )
        position = step.end()
    return tuple(steps), position


def _syntax_error(template: str, start: int, position: int) -> str:
    if template.find("}}", position) < 0:
        return f"{{{{ at character {start + 1} is not closed by }}}}"
    return (
        f"{template[position]!r} at character {position + 1} is not part of a path: write "
        'item.name, item.list[0] or item["any key"]'
    )


def _look_up(path: Path, sample: Sample, item: Mapping[str, Any]) -> Any:
    if path.namespace == "item":
        value = _walk(item, path.steps)
    else:
        field = str(path.steps[0])
        if field == "output_json" and sample.output_json is None:
            raise UnscorableError("sample_parse_error", f"{path.text}: the output is not JSON")
        value = _walk(getattr(sample, field), path.steps[1:])
    if value is _MISSING:
        raise UnscorableError("invalid_variable_error", f"{path.text} does not resolve")
    return value


def _walk(value: Any, steps: tuple[str | int, ...]) -> Any:
    """The value at the end of the steps, or _MISSING."""
    for step in steps:
        if not _has(value, step):
            return _MISSING
        value = value[step]
    return value


def _has(value: Any, step: str | int) -> bool:
    if isinstance(step, int):
        return isinstance(value, list | tuple) and step < len(value)
    return isinstance(value, Mapping) and step in value


def _as_text(path: Path, value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, TypeError, RecursionError):
        raise UnscorableError("invalid_variable_error", f"{path.text} has no JSON form") from None
