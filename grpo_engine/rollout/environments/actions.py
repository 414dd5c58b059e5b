"""A model's turn as an action of its environment.

If the schema of actions requires exactly one field, a string, the turn's text is that field. Otherwise the
turn must hold a tool call or a JSON object. The server, not this module, checks the fields.
"""

import json
from collections.abc import Mapping
from typing import Any

from grpo_engine.outbound.openenv import RefusedAction
from grpo_engine.rollout.tools.calls import CallReader


class ActionReader:
    def __init__(self, schema: Mapping[str, Any], calls: CallReader) -> None:
        """`schema`: JSON schema of the environment's actions."""
        self.text_field = text_field(schema)
        self._calls = calls

    def read(self, text: str) -> dict[str, Any]:
        """The action in a turn's text; thoughts before it are ignored. Raises RefusedAction."""
        before, has_thoughts, after = text.partition(self._calls.known.thoughts_end)
        answer = after if has_thoughts else before
        if self.text_field is not None:
            return {self.text_field: answer.strip()}
        for call in self._calls.read(text):
            if call.error:
                raise RefusedAction(call.error)
            return call.arguments
        return _first_object(answer)


def text_field(schema: Mapping[str, Any]) -> str | None:
    """The only required field if it is a string; None otherwise."""
    required, fields = schema.get("required"), schema.get("properties")
    names = [name for name in required if name != "metadata"] if isinstance(required, list) else []
    if len(names) != 1 or not isinstance(names[0], str) or not isinstance(fields, dict):
        return None
    field = fields.get(names[0])
    return names[0] if isinstance(field, dict) and field.get("type") == "string" else None


def _first_object(text: str) -> dict[str, Any]:
    start = text.find("{")
    if start < 0:
        raise RefusedAction("the action must be a JSON object")
    try:
        found, _ = json.JSONDecoder().raw_decode(text, start)
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise RefusedAction(f"the action is not JSON: {str(error)[:64]}") from None
    assert isinstance(found, dict)
    return found
