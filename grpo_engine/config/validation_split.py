"""Splits the training file into training rows and held-out rows, with the job's seed and grouped by prompt.

The split depends only on the rows, the seed and the wanted number. The service, which counts and checks the
rows, and each rank of the engine compute it on their own, so no second file is stored.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, WithJsonSchema

from grpo_engine.config.messages import plain

MAX_ROWS = 10**9


def _checked(value: float) -> float:
    if 0 < value < 1:
        return value
    if 1 <= value <= MAX_ROWS and value == int(value):
        return int(value)
    raise ValueError(
        "use a share of the rows between 0 and 1, such as 0.1, or a whole number of rows from 1 to "
        f"{MAX_ROWS:,}"
    )


ValidationSplit = Annotated[
    int | float,
    AfterValidator(_checked),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
                {"type": "integer", "minimum": 1, "maximum": MAX_ROWS},
            ]
        }
    ),
]
"""A share of the rows between 0 and 1, or a whole number of rows."""


def prompt_digest(row: Mapping[str, Any]) -> bytes:
    """Digest of the row's prompt: its text, or its conversation without the answer that a last assistant
    message gives. Tools and other fields do not count."""
    messages = row.get("messages")
    if messages and messages[-1].get("role") == "assistant":
        messages = messages[:-1]
    prompt = row.get("prompt") if messages is None else [plain(message) for message in messages]
    return hashlib.blake2b(json.dumps(prompt, sort_keys=True).encode(), digest_size=16).digest()


def held_out_rows(prompts: Sequence[bytes], split: float, seed: int) -> frozenset[int]:
    """Indices of the held-out rows, given each row's `prompt_digest`.

    Prompts are taken in the order of their seeded digests, each with all of its rows; a prompt with more
    rows than are still wanted is skipped. If no prompt repeats, the number is exact.
    """
    wanted = math.floor(split * len(prompts) + 0.5) if split < 1 else int(split)
    repeats, chosen = Counter(prompts), set[bytes]()
    for prompt in sorted(repeats, key=lambda each: hashlib.sha256(b"%d/" % seed + each).digest()):
        if repeats[prompt] <= wanted:
            chosen.add(prompt)
            wanted -= repeats[prompt]
    return frozenset(index for index, prompt in enumerate(prompts) if prompt in chosen)
