"""A model's turn as OpenAI's clients read it: text, and calls with ids."""

import json
import secrets
from collections.abc import Sequence

from grpo_engine.chat.protocol import FunctionCall
from grpo_engine.models.policy import Policy
from grpo_engine.rollout.tools.calls import CallReader

ID_LETTERS = 9
"""Length of a call's id; Mistral's chat templates accept no other."""


def text_and_calls(
    policy: Policy, reader: CallReader | None, token_ids: Sequence[int]
) -> tuple[str, tuple[FunctionCall, ...]]:
    """The text before the first call, and the calls. `reader`: None if the request named no tools.

    A turn without a readable call is text as a whole.
    """
    text, calls = reader.split(policy.turn_text(token_ids)) if reader is not None else ("", [])
    if not calls:
        return policy.completion_text(token_ids), ()
    return text, tuple(
        FunctionCall(
            id=secrets.token_hex(ID_LETTERS)[:ID_LETTERS],
            name=call.name,
            arguments=json.dumps(call.arguments, ensure_ascii=False),
        )
        for call in calls
    )
