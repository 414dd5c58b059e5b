"""Strict JSON: Python's parser also accepts NaN, infinite numbers and objects with the same key twice."""

import json
import math
import re
from typing import Any, NoReturn

TOO_LARGE = "a number is too large"
SHOWN_CHARACTERS = 40
"""The part of a key that a message quotes."""
UNSTORABLE = re.compile("[\0\ud800-\udfff]")
"""NUL characters, which PostgreSQL refuses, and lone surrogates, which UTF-8 cannot encode."""


class StrictJsonError(ValueError):
    """The text is not strict JSON, although Python's grammar accepts it; the message gives the reason."""


class NestingError(StrictJsonError):
    """The text is nested deeper than Python's parser can read."""


def parse_json(text: str) -> Any:
    """JSON written by a model or a program; of a repeated key, the last value counts. Raises ValueError."""
    return _parsed(text)


def parse_document(text: str | bytes) -> Any:
    """JSON written by a person: a key may appear only once in an object. Raises ValueError."""
    return _parsed(text, object_pairs_hook=unique_keys)


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs. Raises StrictJsonError for a key that appears twice."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise StrictJsonError(f"the key {key[:SHOWN_CHARACTERS]!r} appears twice in one object")
        found[key] = value
    return found


def _parsed(text: str | bytes, **hooks: Any) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite, **hooks)
    except RecursionError:
        raise NestingError("nested too deeply") from None
    except ValueError as error:
        if "integer string conversion" in str(error):
            raise StrictJsonError(TOO_LARGE) from None
        raise


def _refuse(constant: str) -> NoReturn:
    raise StrictJsonError(f"{constant} is not a JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise StrictJsonError(TOO_LARGE)
    return number
