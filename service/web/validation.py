"""The base class of request bodies, and the 400 for validation errors, which names the client's field.

Pydantic's locations also contain the tag or branch of a union (`method.reinforcement.reinforcement.…`,
`n_epochs.literal['auto']`). Following the location in the client's body distinguishes them from fields.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict

from grpo_engine.contract.described import Described
from service.platform.errors import InvalidRequest

UnixSeconds = Annotated[int, BeforeValidator(int)]
"""A row's time as whole seconds."""
Location = tuple[str | int, ...]

_SOURCES = {"body", "query", "path", "header", "cookie", "form"}
_BRANCH = re.compile(
    r"[\w-]*\[.*\]|constrained-\w+|str|int|float|bool|none|nullable|list|dict|tuple", re.DOTALL
)
_CREDENTIALS = re.compile(r"//[^/\s]*@")
_CODES = {
    "missing": "missing_field",
    "extra_forbidden": "unknown_field",
    "union_tag_not_found": "missing_field",
}
_JUDGED = {"value_error", "field_problem"}
MAX_OTHERS = 10
MAX_SIMILAR = 2
"""Fields that are suggested for an unknown one."""
MAX_ERRORS = 500
"""Validation errors that are read. They are compared in pairs, and a body of 1 MiB can have 100,000."""
MAX_PATH_LENGTH = 300


class RequestBody(Described):
    """Refuses unknown fields; the docstrings of its fields are their descriptions in `/openapi.json`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def invalid_request(errors: Sequence[Mapping[str, Any]], body: Any, expected: Any = None) -> InvalidRequest:
    """All problems with their fields, in each place the deepest of a union's branches.

    expected: the body's annotation, for suggestions for unknown fields.
    """
    if errors[0]["type"] == "json_invalid":
        return invalid_json(syntax_reason(errors[0]["ctx"]["error"], errors[0]["loc"][-1]))
    problems: dict[str, list[Mapping[str, Any]]] = {}
    for error in errors[:MAX_ERRORS]:
        location = (*error["loc"], *error.get("ctx", {}).get("place", ()))
        problems.setdefault(field_path(location, body, error["type"]), []).append(error)
    named = [path for path in problems if not _has_deeper(path, problems)]
    sentences = {path: _sentence(path, problems[path], expected, body) for path in named[: MAX_OTHERS + 1]}
    (first, message), *others = sentences.items()
    if others:
        message += f" Also wrong: {'; '.join(other.removesuffix('.') for _, other in others)}."
    code = _CODES.get(problems[first][0]["type"], "invalid_value")
    refused = InvalidRequest(message, param=first or None, code=code)
    if others:
        refused.problems = [{"param": path, "message": each} for path, each in sentences.items()]
    return refused


def invalid_json(reason: str) -> InvalidRequest:
    return InvalidRequest(f"The body is not valid JSON: {reason}.", code="invalid_json")


def syntax_reason(message: str, character: int | str) -> str:
    """A message of Python's JSON parser with its position; some of the parser's messages end with "at"."""
    return f"{message.removesuffix(' at')} at character {character}"


def field_path(location: Location, body: Any, kind: str = "") -> str:
    """pydantic's location → `method.reinforcement.tools[0].name`; "" for the whole body."""
    source, rest = (location[0], location[1:]) if location and location[0] in _SOURCES else ("", location)
    value = body if source in ("body", "") else None
    path = ""
    can_be_tag = True
    for position, part in enumerate(rest):
        is_last = position == len(rest) - 1
        if can_be_tag and isinstance(value, Mapping) and value.get("type") == part:
            can_be_tag = False
        elif not _is_field(part, value, is_last=is_last, is_body=source in ("body", "")):
            continue
        else:
            path += f"[{part}]" if isinstance(part, int) else f".{part}"
            value, can_be_tag = _child(value, part), True
    if kind.startswith("union_tag"):
        path += ".type"
    return path.removeprefix(".")[:MAX_PATH_LENGTH]


def _is_field(part: str | int, value: Any, *, is_last: bool, is_body: bool) -> bool:
    if not is_body or isinstance(part, int):
        return True
    if isinstance(value, Mapping) and part in value:
        return True
    # A name that is not in the body is a missing field if it ends the location, otherwise a union's branch.
    return is_last and isinstance(value, Mapping) and not _BRANCH.fullmatch(part)


def _child(value: Any, part: str | int) -> Any:
    if isinstance(value, Mapping):
        return value.get(part)
    if isinstance(value, Sequence) and isinstance(part, int) and not isinstance(value, str):
        return value[part] if part < len(value) else None
    return None


def _has_deeper(path: str, paths: Mapping[str, Any]) -> bool:
    prefixes = (f"{path}.", f"{path}[") if path else ""
    return any(other != path and other.startswith(prefixes) for other in paths)


def _sentence(path: str, errors: Sequence[Mapping[str, Any]], expected: Any, body: Any) -> str:
    # a branch that refused the value is more specific than branches that expected another type
    errors = [error for error in errors if error["type"] in _JUDGED] or errors
    parts = list(dict.fromkeys(_message(error, expected, body) for error in errors))
    alternatives = [parts[0], *(part.removeprefix("Input should be ") for part in parts[1:])]
    text = f"{path or 'The body'}: {' or '.join(alternatives)}"
    given = errors[0].get("input")
    if errors[0]["type"] not in _CODES and isinstance(given, str | int | float | bool):
        text += f", got {shortened(given)}"
    return text + "."


def _message(error: Mapping[str, Any], expected: Any, body: Any) -> str:
    match error["type"]:
        case "missing" | "union_tag_not_found":
            return "Field required"
        case "extra_forbidden":
            return f"Unknown field{_suggestion(error['loc'], expected, body)}"
        case "union_tag_invalid":
            expected, given = error["ctx"]["expected_tags"], shortened(error["ctx"]["tag"])
            return f"Input should be one of {expected}, got {given}"
        case "model_attributes_type" | "model_type" | "dict_type":
            return "Input should be a JSON object"
        case "tuple_type":
            return "Input should be a list"
        case "too_long" | "too_short":
            return _counted(error["ctx"])
        case _:
            return str(error["msg"]).removeprefix("Value error, ").rstrip(".")


def _suggestion(location: Location, expected: Any, body: Any) -> str:
    """The only other place of a field of that name, or similar fields of the object that has it."""
    *place, name = location[1:] if location[0] in _SOURCES else location
    if len(places := list(_places(expected, body, name))) == 1:
        return f" (move it to {places[0]})"
    models = list(_models(expected))
    for part in place:
        inside = [model.model_fields[part].annotation for model in models if part in model.model_fields]
        if inside:
            models = [model for annotation in inside for model in _models(annotation)]
        else:  # a union's tag, a position in a list or a key of an object
            models = [model for model in models if _has_tag(model, part)] or models
    known = sorted({field for model in models for field in model.model_fields})
    alike = get_close_matches(str(name), known, MAX_SIMILAR, 0.7)
    return f" (did you mean {' or '.join(alike)}?)" if alike else ""


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    else:
        for each in get_args(annotation):
            yield from _models(each)


def _places(expected: Any, body: Any, name: str | int, path: str = "") -> Iterator[str]:
    """Each object of the body, present or not, that has a field of that name.

    An object with a `type` must be present, because others of its types have other fields.
    """
    given = body if isinstance(body, Mapping) else {}
    for model in _models(expected):
        if "type" in model.model_fields and not _has_tag(model, given.get("type", 0)):
            continue
        if name in model.model_fields:
            yield path or "the top level"
        for field, about in model.model_fields.items():
            yield from _places(about.annotation, given.get(field), name, f"{path}.{field}".removeprefix("."))


def _has_tag(model: type[BaseModel], tag: str | int) -> bool:
    field = model.model_fields.get("type")
    return field is not None and tag in get_args(field.annotation)


def _counted(context: Mapping[str, Any]) -> str:
    bound = "min_length" if "min_length" in context else "max_length"
    word = "at least" if bound == "min_length" else "at most"
    found = context["actual_length"]  # unknown if pydantic stopped counting
    return f"Input should have {word} {context[bound]} items{'' if found is None else f', not {found}'}"


def shortened(value: object) -> str:
    """The value for an error, without the credentials of a URL."""
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    text = _CREDENTIALS.sub("//…@", text)
    return text if len(text) <= 80 else text[:77] + "…"
