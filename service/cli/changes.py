"""Changes to a job's request, as `--set FIELD=VALUE` writes them: short names, and the merge patch.

Boundary: the service validates the changed request.
"""

import types
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from grpo_engine.contract.strict_json import parse_json
from service.cli.terminal.errors import CommandError

SIMILAR = 5
"""Maximum number of fields that an error suggests."""
Field = tuple[str, ...]


def patch_of(changes: Sequence[str], method: str | None = None) -> dict[str, Any]:
    """`a.b=1` → {"a": {"b": 1}}. A value that is not JSON is text. Raises CommandError.

    method: the type of the job's method. It allows a field to be given by the end of its path, such as
    `beta` for `method.reinforcement.hyperparameters.beta`. With None, paths must be complete.
    """
    known = tuple(fields_of(method)) if method else ()
    patch: dict[str, Any] = {}
    for change in changes:
        path, separator, value = change.partition("=")
        names = tuple(path.split("."))
        if not separator or not all(names):
            raise CommandError(f"--set {change}: write FIELD=VALUE, as in learning_rate=1e-5")
        *inner, last = whole_name(names, known) if known else names
        place = patch
        for name in inner:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                raise CommandError(f"--set {change}: {name} is set twice")
        place[last] = _value(value)
    return patch


def whole_name(names: Field, known: Sequence[Field]) -> Field:
    """The complete path of the field whose path ends with `names`. Raises CommandError.

    Names inside a field are kept, such as `owner` in `metadata.owner`.
    """
    if any(field[0] == names[0] for field in known):
        return names
    for length in range(len(names), 0, -1):
        head, rest = names[:length], names[length:]
        found = [(*field, *rest) for field in known if field[-length:] == head]
        if len(found) == 1:
            return found[0]
        if found:
            raise CommandError(f"--set {'.'.join(names)} could be {_listed(found)}", code="ambiguous_field")
    ends = [field[-1] for field in known]
    alike = dict.fromkeys(get_close_matches(names[-1], ends, SIMILAR, 0.6))
    candidates = [field for end in alike for field in known if field[-1] == end]
    hint = (
        f"did you mean {_listed(candidates)}?"
        if candidates
        else "docs/reference/hyperparameters.md lists the hyperparameters"
    )
    raise CommandError(f"--set {'.'.join(names)}: the job has no such field", code="unknown_field", hint=hint)


def fields_of(method: str) -> Iterator[Field]:
    """The path of every field of a request with this type of method; a list or a grader is one field."""
    # importing these takes a tenth of a second, which other commands save
    from grpo_engine.config.job import Reinforcement, Supervised, TrainingFree
    from grpo_engine.config.recipes import ALIASES
    from service.jobs.model.schemas import JobCreate

    kinds: dict[str, type[BaseModel]] = {
        "reinforcement": Reinforcement,
        "supervised": Supervised,
        "training_free": TrainingFree,
    }
    for name, field in JobCreate.model_fields.items():
        if name not in ("method", "hyperparameters"):  # ignored if the request has a method
            yield from _inside((name,), field.annotation)
    yield ("method", "type")
    if method in kinds:
        inside = [*_inside(("method", method), kinds[method].model_fields[method].annotation)]
        yield from inside
        settings = ("method", method, "hyperparameters")
        yield from ((*settings, alias) for alias, name in ALIASES.items() if (*settings, name) in inside)


def _inside(place: Field, annotation: Any) -> Iterator[Field]:
    """The field and, if it is an object, the fields inside it."""
    yield place
    for model in _models(annotation):
        if "type" not in model.model_fields:
            for name, field in model.model_fields.items():
                yield from _inside((*place, name), field.annotation)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, types.UnionType, Annotated):
        for each in get_args(annotation):
            yield from _models(each)


def _listed(fields: Sequence[Field]) -> str:
    return " or ".join(".".join(field) for field in fields[:SIMILAR])


def _value(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return text
