"""Feedback on a completion, of bounded length whatever the completion holds."""

import json

from grpo_engine.contract.records import storable

MAX_FEEDBACK_CHARACTERS = 300
_MAX_QUOTED_CHARACTERS = 110


def excerpt(text: str) -> str:
    """The text in quotes, on one line; a long one is cut in the middle."""
    if len(text) > _MAX_QUOTED_CHARACTERS:
        half = (_MAX_QUOTED_CHARACTERS - 3) // 2
        text = f"{text[:half]}...{text[-half:]}"
    return json.dumps(text, ensure_ascii=False)


def bounded_feedback(text: str) -> str:
    """Feedback of at most MAX_FEEDBACK_CHARACTERS, storable."""
    text = storable(text)
    return text if len(text) <= MAX_FEEDBACK_CHARACTERS else f"{text[: MAX_FEEDBACK_CHARACTERS - 3]}..."
