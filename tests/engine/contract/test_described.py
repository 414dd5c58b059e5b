"""A field's docstring is its description in JSON schemas."""

from typing import Any

from pydantic import Field

from grpo_engine.contract.described import Described


class Parent(Described):
    inherited: int
    """Of the parent."""
    redefined: int
    """Not of the child."""


class Child(Parent):
    redefined: int
    own: Parent
    """Several
    lines.
    """
    renamed: int = Field(alias="name")
    """Under its alias."""
    stated: int = Field(description="As stated.")
    """Not used."""


def described(schema: dict[str, Any]) -> dict[str, str | None]:
    return {name: field.get("description") for name, field in schema["properties"].items()}


def test_fields_are_described_by_the_docstring_of_the_class_that_defines_them() -> None:
    schema = Child.model_json_schema()
    assert described(schema) == {
        "inherited": "Of the parent.",
        "redefined": None,
        "own": "Several\nlines.",
        "name": "Under its alias.",
        "stated": "As stated.",
    }
    assert described(schema["$defs"]["Parent"]) == {
        "inherited": "Of the parent.",
        "redefined": "Not of the child.",
    }
