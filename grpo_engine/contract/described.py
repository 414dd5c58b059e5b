"""Models whose JSON schemas describe each field with its docstring.

pydantic's `use_attribute_docstrings` reads the source when a class is created. That would take half of the
start time of a grader process, which never writes a schema.
"""

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic_core import CoreSchema


class Described(BaseModel):
    """A model whose field docstrings are its field descriptions; they are read when a schema is written."""

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, field in cls.model_fields.items():
            written = properties.get(name, properties.get(field.alias))
            docstring = _docstring(cls, name)
            if written is not None and docstring is not None:
                written.setdefault("description", docstring)
        return schema


def _docstring(model: type[BaseModel], field: str) -> str | None:
    """The docstring below the field in the class that defines it."""
    owner = next(each for each in model.__mro__ if field in vars(each).get("__annotations__", {}))
    return _docstrings(owner.__module__).get(owner.__name__, {}).get(field)


@cache
def _docstrings(module: str) -> dict[str, dict[str, str]]:
    """Class → field → docstring, from a module's source."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return {each.name: dict(_documented(each.body)) for each in classes}


def _documented(body: Iterable[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Each annotated name that is followed by a string, with that string."""
    for field, text in pairwise(body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(docstring))):
                yield name, inspect.cleandoc(docstring)
