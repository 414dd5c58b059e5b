"""Numbers as models write them: `1,234`, `$6.00`, `-3/4`, `50%`, `6.02e23`, `3 \\times 10^8`, `\\frac{1}{2}`,
`\\frac12`, `½`.

Numbers are exact (fractions, never floats). Expressions are not evaluated: `2+3` ends in the number 3. Only
the text around the last digit is read, and digits and exponents are bounded, so a text costs microseconds.
"""

import re
from fractions import Fraction
from typing import NamedTuple
from unicodedata import normalize

MAX_CHARACTERS = 256
"""Longer numbers are not recognised."""
MAX_EXPONENT = 400
_TAIL_CHARACTERS = 8
_BOXED = "\\boxed{"
_MAX_BOXED_CHARACTERS = 4096

_SIMPLE = (
    r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<![0-9])\.[0-9]+)"
    r"(?:[eE][-+−]?[0-9]+|\s?(?:×|\*|\\times|\\cdot)\s?10(?:\^|\*\*)\{?[-+−]?[0-9]+\}?)?"
)
# A sign directly after a letter, a digit or a closing bracket is subtraction or a hyphen.
_SIGN = r"(?:(?<![0-9A-Za-z_)\]}])[-+−])"
_INNER = rf"\s*[-+−]?{_SIMPLE}\s*"
_NUMBER = re.compile(
    rf"(?P<sign>{_SIGN})?(?:\\?[$€£¥]\s?)?(?P<late_sign>(?<=[$€£¥])[-+−])?"
    rf"(?:(?P<whole>[0-9]+)?\s?\\[dt]?frac\s?\{{(?P<over>{_INNER})\}}\s?\{{(?P<under>{_INNER})\}}"
    rf"|(?P<first>{_SIMPLE})(?:\s?/\s?(?P<second>{_SIMPLE}))?)"
    r"\s?(?P<percent>\\?%)?"
)
_PARTS = re.compile(r"([-+]?[0-9.]+)(?:(?:[eE]|.*10(?:\^|\*\*)\{?)([-+]?[0-9]+)\}?)?", re.S)
_BARE_DIGIT = re.compile(r"(\\[dt]?frac\s?(?:\{[^{}]*\}\s?)?)([0-9])")
"""A digit as an argument without braces: `\\frac12` is `\\frac{1}{2}`."""
_LATEX_SPACE = re.compile(r"\{(,)\}|\\!|(?<=[0-9])\\,(?=[0-9]{3})")
_THIN_SPACE = re.compile("(?<=[0-9])[\u2009\u202f](?=[0-9]{3}(?![0-9]))")
"""Separates thousands, as in French; a plain space may separate two numbers."""
_ONE_CHARACTER = "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
_FRACTIONS = str.maketrans(
    {each: "\\frac{{{}}}{{{}}}".format(*normalize("NFKC", each).split("⁄")) for each in _ONE_CHARACTER}
)
"""`½` → `\\frac{1}{2}`."""
_DIGIT = re.compile(f"[0-9{_ONE_CHARACTER}]")
_SEPARATED = re.compile("[0-9][,.]$")


class Number(NamedTuple):
    """A number read from text."""

    value: Fraction
    """The number as written: `50%` is 50."""
    percent: bool
    is_part: bool
    """Whether digits and a separator precede it directly: of `3,5` and `1.234.567` only the end is read."""

    def __str__(self) -> str:
        """`7`, `5/2`, `50%`."""
        return f"{self.value}{'%' if self.percent else ''}"


def last_number(text: str, *, tag: str | None = None) -> Number | None:
    """Last number of the text, or of its last `<tag>…</tag>`; if there is a `\\boxed{…}`, of the last one.

    None if there is no number, if it exceeds the bounds, or if it is a fraction over zero.
    """
    if tag is not None:
        inside = tagged(text, tag)
        if inside is None:
            return None
        text = inside
    boxed = _boxed(text)
    return _last(text if boxed is None else boxed)


def agree(left: Number, right: Number, *, absolute: Fraction, relative: Fraction) -> bool:
    """Whether |left - right| <= max(absolute, relative * |right|), exactly.

    If only one side has a percent sign, `50%` may mean 50 or 0.5.
    """
    if _near(left.value, right.value, absolute, relative):
        return True
    if left.percent == right.percent:
        return False
    first, second = (side.value / 100 if side.percent else side.value for side in (left, right))
    return _near(first, second, absolute, relative)


def _near(left: Fraction, right: Fraction, absolute: Fraction, relative: Fraction) -> bool:
    return left == right or abs(left - right) <= max(absolute, relative * abs(right))


def tagged(text: str, tag: str) -> str | None:
    """The inside of the last `<tag>…</tag>`; None without one."""
    end = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, max(end, 0))
    return text[start + len(tag) + 2 : end] if start >= 0 else None


def _boxed(text: str) -> str | None:
    """Content of the last `\\boxed{…}` with balanced braces."""
    start = text.rfind(_BOXED)
    if start < 0:
        return None
    start += len(_BOXED)
    depth = 1
    for position in range(start, min(len(text), start + _MAX_BOXED_CHARACTERS)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start:position]
    return None


def _last(text: str) -> Number | None:
    from_end = _DIGIT.search(text[::-1])
    if from_end is None:
        return None
    last_digit = len(text) - from_end.end()
    start = max(0, last_digit - MAX_CHARACTERS)
    window = text[start : last_digit + 1 + _TAIL_CHARACTERS].translate(_FRACTIONS)
    window = _THIN_SPACE.sub("", window)
    if "\\" in window or "{" in window:
        window = _LATEX_SPACE.sub(r"\1", window)
        for _ in range(2):
            window = _BARE_DIGIT.sub(r"\1{\2}", window)
    found = list(_NUMBER.finditer(window))
    if not found or (start > 0 and found[-1].start() == 0):
        return None
    return _read(found[-1])


def _read(found: re.Match[str]) -> Number | None:
    if found["over"] is not None:
        value = _fraction(found["over"], found["under"])
        value = None if value is None else value + int(found["whole"] or 0)
    else:
        value = _fraction(found["first"], found["second"] or "1")
    if value is None:
        return None
    negative = (found["sign"] or found["late_sign"]) in ("-", "−")
    is_part = _SEPARATED.search(found.string, 0, found.start()) is not None
    return Number(-value if negative else value, found["percent"] is not None, is_part)


def _fraction(over: str, under: str) -> Fraction | None:
    numerator, denominator = _simple(over), _simple(under)
    return None if numerator is None or not denominator else numerator / denominator


def _simple(text: str) -> Fraction | None:
    parts = _PARTS.fullmatch(text.strip().replace("−", "-").replace(",", ""))
    if parts is None or abs(exponent := int(parts[2] or 0)) > MAX_EXPONENT:
        return None
    return Fraction(parts[1]) * Fraction(10) ** exponent
