"""Meanings of fields: their descriptions, which are the docstrings below them in the model."""

import inspect
from functools import cache

from pydantic import BaseModel


@cache
def meanings(model: type[BaseModel]) -> dict[str, str]:
    """Meaning by field. Raises LookupError for a field without a description."""
    found = {name: field.description for name, field in model.model_fields.items()}
    if "type" in found:
        found["type"] = found["type"] or "Kind of the object."
    if missing := [name for name, text in found.items() if not text]:
        raise LookupError(f"{model.__name__} has fields without a description: {', '.join(missing)}")
    return {name: inspect.cleandoc(text or "") for name, text in found.items()}


def class_text(model: type[BaseModel]) -> str:
    """The class's own docstring, with indented lines as code."""
    return inspect.cleandoc(model.__doc__ or "")
