"""Which schemas of actions take a turn's whole text."""

from typing import Any

import pytest

from grpo_engine.rollout.environments.actions import text_field

MESSAGE = {"required": ["message"], "properties": {"message": {"type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        (MESSAGE, "message"),
        ({**MESSAGE, "required": ["message", "metadata"]}, "message"),
        ({**MESSAGE, "required": 5}, None),
        ({**MESSAGE, "required": [{}]}, None),
        ({**MESSAGE, "properties": [1]}, None),
        ({**MESSAGE, "properties": {"message": True}}, None),
    ],
)
def test_only_one_required_text_is_the_whole_turn_whatever_a_server_sends(
    schema: dict[str, Any], field: str | None
) -> None:
    assert text_field(schema) == field
