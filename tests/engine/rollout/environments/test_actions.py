"""Which schemas of actions take a turn's whole text, and which JSON is an action."""

from typing import Any

import pytest

from grpo_engine.config.tool_formats import HERMES
from grpo_engine.outbound.openenv import RefusedAction
from grpo_engine.rollout.environments.actions import ActionReader, text_field
from grpo_engine.rollout.tools.calls import CallReader

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


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_an_action_with_a_number_that_json_lacks_is_malformed(number: str) -> None:
    reader = ActionReader({}, CallReader(HERMES, []))
    with pytest.raises(RefusedAction, match="the action is not JSON"):
        reader.read(f'{{"bid": {number}}}')
