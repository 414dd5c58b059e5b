"""Meanings of fields: their descriptions, which are the docstrings below them in the model."""

import inspect
from functools import cache

from pydantic import BaseModel


@cache
def meanings(model: type[BaseModel]) -> dict[str, str]:
    """Meaning by field. Raises LookupError for a field without a description."""
    properties = model.model_json_schema(by_alias=False)["properties"]
    found = {name: schema.get("description") for name, schema in properties.items()}
    if "type" in found:
        found["type"] = found["type"] or "Kind of the object."
    if missing := [name for name, text in found.items() if not text]:
        raise LookupError(f"{model.__name__} has fields without a description: {', '.join(missing)}")
    return found


def class_text(model: type[BaseModel]) -> str:
    """The class's own docstring, with indented lines as code."""
    return inspect.cleandoc(model.__doc__ or "")
