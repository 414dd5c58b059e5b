"""A model's text as the sample that graders see."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grpo_engine.contract.records import FinishReason, Sample, storable
from grpo_engine.contract.strict_json import parse_json

MAX_DEPTH = 200
"""Levels of a text's JSON; records with more than 255 could not be stored or sent to graders."""


def make_sample(
    text: str,
    *,
    num_tokens: int = 0,
    finish_reason: FinishReason = FinishReason.STOP,
    tools: Sequence[Mapping[str, Any]] = (),
    environment_reward: float | None = None,
) -> Sample:
    """Sample of a completion's text; `output_json` is set if the whole text is JSON.

    Unpaired surrogates, which UTF-8 cannot encode, become `?`. `num_tokens` 0 means unknown.
    """
    text = storable(text)
    return Sample(
        output_text=text,
        output_json=_json_of(text),
        output_tools=tuple(dict(call) for call in tools),
        num_tokens=num_tokens,
        finish_reason=finish_reason,
        environment_reward=environment_reward,
    )


def _json_of(text: str) -> Any:
    """The text parsed as JSON, or None if it is not JSON of at most MAX_DEPTH levels.

    An escaped surrogate, `"\\ud800"`, becomes `?`.
    """
    try:
        found = parse_json(text)
        if is_deep(found):
            return None
        return found if "\\u" not in text else json.loads(storable(json.dumps(found, ensure_ascii=False)))
    except (ValueError, RecursionError):
        return None


def is_deep(value: Any, limit: int = MAX_DEPTH) -> bool:
    """Whether a JSON value has more than this number of levels."""
    level = [value]
    for _ in range(limit):
        level = [part for each in level for part in parts_of(each)]
        if not level:
            return False
    return True


def parts_of(value: Any) -> Iterable[Any]:
    """The values of a JSON object or array; nothing of any other value."""
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
