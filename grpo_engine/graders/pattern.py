"""Users' regular expressions in a linear-time engine (RE2), bounded in program size, memory and text.

RE2's syntax has no back-references and no look-around.
"""

from functools import lru_cache
from typing import Any

import re2

MAX_CHARACTERS = 4096
MAX_TEXT_CHARACTERS = 500_000
MAX_INSTRUCTIONS = 4000
"""Time is proportional to instructions × text."""


@lru_cache(maxsize=128)
def compiled(pattern: str) -> Any:
    """Compiled pattern. Raises ValueError if it is invalid or too large."""
    if len(pattern) > MAX_CHARACTERS:
        raise ValueError(f"a pattern has at most {MAX_CHARACTERS} characters")
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True  # matching is much faster without groups
    options.max_mem = 2**21
    try:
        program = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(f"not an RE2 pattern: {text}") from None
    if program.programsize > MAX_INSTRUCTIONS:
        raise ValueError(f"pattern too large: {program.programsize} instructions, at most {MAX_INSTRUCTIONS}")
    return program


def matches(pattern: str, text: str, *, full: bool) -> bool:
    """Whether the pattern matches all of the text (`full`) or some of it."""
    program = compiled(pattern)
    data = text.encode("utf-8", "replace")
    return (program.fullmatch(data) if full else program.search(data)) is not None
