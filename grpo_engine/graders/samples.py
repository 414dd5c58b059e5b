"""A model's text as the sample that graders see.

Boundary: the text is data. It is parsed as JSON where it is JSON, and nothing in it is ever executed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from grpo_engine.contract.records import FinishReason, Sample
from grpo_engine.graders.feedback import storable


def make_sample(
    text: str,
    *,
    num_tokens: int = 0,
    finish_reason: FinishReason = FinishReason.STOP,
    tools: Sequence[Mapping[str, Any]] = (),
) -> Sample:
    """Sample of a completion's text; `output_json` is set where the whole text is JSON.

    Unpaired surrogates, which no UTF-8 text can hold, become `?`. `num_tokens` 0 means not known.
    """
    text = storable(text)
    return Sample(
        output_text=text,
        output_json=_json_of(text),
        output_tools=tuple(dict(call) for call in tools),
        num_tokens=num_tokens,
        finish_reason=finish_reason,
    )


def _json_of(text: str) -> Any:
    """What the text is as JSON, None where it is none; `"\\ud800"` spells a surrogate, which becomes `?`."""
    try:
        found = parse_json(text)
        return found if "\\u" not in text else json.loads(storable(json.dumps(found, ensure_ascii=False)))
    except (ValueError, RecursionError):
        return None


def parse_json(text: str) -> Any:
    """Strict JSON: no NaN or Infinity, no number beyond float. Raises ValueError for anything else."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("number out of range")
    return value
