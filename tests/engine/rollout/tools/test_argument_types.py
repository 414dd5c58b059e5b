"""Arguments that a format writes as text get the types of the tool's schema; their names may be any text."""

from typing import Any

import pytest

from grpo_engine.config.tool_formats import FORMATS
from grpo_engine.rollout.tools.calls import CallReader, ToolCall
from tests.engine.rollout.tools.families import FAMILIES

XML = next(each for each in FORMATS if each.name == "xml")
LONG_CHAIN = 2000
"""References, each of which leads to the next one; more than Python's functions may call each other."""


@pytest.mark.parametrize(
    ("schema", "written", "value"),
    [
        ({"$ref": "#/$defs/Place"}, '{"town": "Bern"}', {"town": "Bern"}),
        ({"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]}, '{"town": "Bern"}', {"town": "Bern"}),
        ({"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]}, "null", None),
        ({"allOf": [{"$ref": "#/$defs/Level"}], "default": 1}, "2", 2),
        ({"$ref": "#/$defs/Endless"}, "[1]", [1]),
        ({"$ref": "#/$defs/0"}, "2", 2),
        ({"$ref": "#/$defs/Places/1"}, "2", 2),
        ({"$ref": f"#/$defs/Places/{'9' * 5000}"}, "2", "2"),
        ({"enum": [1, 2]}, "2", 2),
        ({"enum": ["1", "2"]}, "2", "2"),
        ({"const": True}, "true", True),
        ({"type": "integer", "nullable": True}, "null", None),
        ({"$ref": "#/$defs/Missing"}, "2", "2"),
        ({}, "2", "2"),
        (True, "2", "2"),
        ({"type": 3, "anyOf": 3, "enum": 3, "$ref": 3}, "2", "2"),
    ],
)
def test_the_type_of_an_argument_may_be_given_by_a_reference_or_its_values(
    schema: Any, written: str, value: Any
) -> None:
    definitions = {
        "Place": {"type": "object", "properties": {"town": {"type": "string"}}},
        "Level": {"enum": [1, 2]},
        "Endless": {"anyOf": [{"$ref": "#/$defs/Endless"}, {"type": "array"}]},
        "Places": [{"type": "string"}, {"type": "integer"}],
        **{str(number): {"$ref": f"#/$defs/{number + 1}"} for number in range(LONG_CHAIN)},
        str(LONG_CHAIN): {"type": "integer"},
    }
    parameters = {"type": "object", "properties": {"a": schema}, "$defs": definitions}
    tool = {"type": "function", "function": {"name": "add", "parameters": parameters}}
    text = FAMILIES["xml"].call("add", {"a": written})
    assert CallReader(XML, [tool]).read(text) == [ToolCall("add", {"a": value})]


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_names_of_arguments_that_are_no_identifiers_arrive_unchanged(name: str) -> None:
    """Schemas of other people's servers have them. Gemma writes them without quotes."""
    arguments = {"user-id": 7, "$ref": {"a.b": [True, {"@type": "{x-y:1}, a:b"}]}, "due date": "-"}
    types = {"user-id": {"type": "integer"}, "$ref": {"type": "object"}, "due date": {"type": "string"}}
    tool = {"function": {"name": "add", "parameters": {"type": "object", "properties": types}}}
    (known,) = [each for each in FORMATS if each.name == FAMILIES[name].format]
    read = CallReader(known, [tool]).read(FAMILIES[name].call("add", arguments))
    assert read == [ToolCall("add", arguments)]
