"""Rules that turn another system's configuration into a job, with a line of report for each field.

Boundary: pure. Each source's fields are in its own table (`trl.py`, `axolotl.py`, `verl.py`).
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal

Verdict = Literal["maps", "differs", "not needed", "refused", "unknown"]
JOB_FIELDS = (
    *("model", "training_file", "validation_file", "validation_split"),
    *("seed", "suffix", "metadata", "integrations"),
)
"""Targets in the job itself; all others except the grader are hyperparameters."""
_SCIENTIFIC = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")
ALIKE = 0.85
"""Least similarity at which a field of the source is suggested in place of an unknown one."""
_SPECIAL = "(?<!" + "|".join(f"{name}_" for name in ("bos", "eos", "pad", "unk", "sep", "cls")) + ")"
"""Does not match after the name of a special token: `pad_token` is not a secret."""
_SECRET = re.compile(rf"{_SPECIAL}token(?!izer)|secret|password|api_key", re.IGNORECASE)


class Refusal(Exception):
    """This value cannot be translated; the message gives the reason and what to do."""


@dataclass(frozen=True)
class Line:
    """The outcome for one field, or for several fields that belong together."""

    fields: tuple[str, ...]
    values: tuple[Any, ...]
    verdict: Verdict
    to: str = ""
    """The job's field that takes the value."""
    why: str = ""
    stated: bool = True
    """False if the value is the source's default, which differs from the service's."""

    def document(self) -> dict[str, Any]:
        given = dict(zip(self.fields, self.values, strict=True))
        return {"fields": given, **{name: getattr(self, name) for name in ("verdict", "to", "why", "stated")}}


@dataclass(frozen=True)
class Options:
    """Information that the configuration itself does not contain."""

    num_processes: int = 1
    """Processes of `accelerate launch`, which share a step's completions."""
    model: str | None = None
    """A name of the catalogue that replaces the configuration's."""
    data: str | None = None
    validation_data: str | None = None
    num_rows: int | None = None
    """Number of rows of the dataset; None if no dataset was given."""
    rewards: tuple[str, ...] = ()
    """Reward functions that the training script passes itself: `file.py:function`."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Name of a reward function → the source of its module."""


@dataclass
class Translation:
    """The given fields, the job so far, and the report."""

    given: Mapping[str, Any]
    options: Options
    defaults: Mapping[str, Any] = field(default_factory=dict)
    targets: dict[str, Any] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)

    def __getitem__(self, name: str) -> Any:
        """The given value, or the source's default."""
        return self.given.get(name, self.defaults.get(name))

    def states(self, *names: str) -> bool:
        return any(name in self.given for name in names)

    def maps(self, names: str | tuple[str, ...], to: str, value: Any, *, differs: str = "") -> None:
        """Reports that the job has an equal field or, with `differs`, one that is not quite equal."""
        if isinstance(value, float) and not math.isfinite(value):
            raise Refusal("a finite number is needed")
        self.targets[to] = value
        shown = value.get("type") if isinstance(value, dict) else value
        self._report(names, "differs" if differs else "maps", f"{to}: {shown}", differs)

    def differs(self, names: str | tuple[str, ...], why: str) -> None:
        """Reports that the job has no such field, so the result differs."""
        self._report(names, "differs", "", why)

    def leaves(self, names: str | tuple[str, ...], why: str) -> None:
        """Reports that the job needs no such field."""
        self._report(names, "not needed", "", why)

    def refuses(self, names: str | tuple[str, ...], why: str) -> None:
        self._report(names, "refused", "", why)

    def _report(self, names: str | tuple[str, ...], verdict: Verdict, to: str, why: str) -> None:
        fields = (names,) if isinstance(names, str) else names
        stated = tuple(name for name in fields if name in self.given)
        if not stated and not to and verdict != "refused":
            return
        shown = stated or fields
        values = tuple(shown_value(name, self[name]) for name in shown)
        self.lines.append(Line(shown, values, verdict, to, why, bool(stated)))


@dataclass(frozen=True)
class Rule:
    """Translates some fields: `apply` writes targets and lines."""

    defaults: Mapping[str, Any]
    """Each field with the source's default; `UNSET` if its value does not matter."""
    apply: Callable[[Translation], None]


UNSET = object()


def maps(
    name: str,
    default: Any,
    to: str,
    convert: Callable[[Any], Any] = lambda value: value,
    *,
    differs: str = "",
) -> Rule:
    """A field with a counterpart in the job. `convert` may raise Refusal."""

    def apply(translation: Translation) -> None:
        translation.maps(name, to, convert(translation[name]), differs=differs)

    return Rule({name: default}, apply)


def only(name: str, *allowed: Any, why: str) -> Rule:
    """A field for which only these values, the default first, are supported; others are refused."""

    return _fixed(name, allowed, Translation.refuses, why)


def unneeded(why: str, names: str, under: str = "") -> Rule:
    """Fields, separated by spaces, whose values do not matter here; `under`: the section they are in."""
    fields = [f"{under}.{name}" if under else name for name in names.split()]

    def apply(translation: Translation) -> None:
        for name in fields:
            translation.leaves(name, why)

    return Rule(dict.fromkeys(fields, UNSET), apply)


def unlike(name: str, default: Any, why: str) -> Rule:
    """A field that is reported as a difference unless it has its default value."""

    return _fixed(name, (default,), Translation.differs, why)


def _fixed(
    name: str, allowed: tuple[Any, ...], otherwise: Callable[[Translation, str, str], None], why: str
) -> Rule:
    def apply(translation: Translation) -> None:
        if translation[name] in allowed:
            translation.leaves(name, "the same here")
        else:
            otherwise(translation, name, why)

    return Rule({name: allowed[0]}, apply)


def together(defaults: Mapping[str, Any]) -> Callable[[Callable[[Translation], None]], Rule]:
    """Makes a function the rule for fields that have a meaning only together."""
    return lambda apply: Rule(defaults, apply)


def number(value: Any) -> Any:
    """YAML reads `1e-6` as text; TRL, Axolotl and verl read a number."""
    return float(value) if isinstance(value, str) and _SCIENTIFIC.fullmatch(value) else value


def whole(value: Any) -> int:
    """3.0 → 3. Raises Refusal for a fraction."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise Refusal(f"a whole number is needed, not {value!r}")
    return int(value)


def shown_value(name: str, value: Any) -> Any:
    """The value as the report shows it, without secrets and without numbers that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: shown_value(str(key), part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [shown_value(name, part) for part in value]
    return "…" if value and _SECRET.search(name) and isinstance(value, str) else value


def translated(rules: tuple[Rule, ...], given: Mapping[str, Any], options: Options) -> Translation:
    """Applies all rules to a flat configuration; a field without a rule is reported as unknown."""
    defaults = {name: value for rule in rules for name, value in rule.defaults.items()}
    numbers = {name: number(value) for name, value in given.items()}
    translation = Translation(numbers, options, defaults)
    for rule in rules:
        try:
            rule.apply(translation)
        except (Refusal, TypeError, ValueError, ArithmeticError) as error:
            # a value of the wrong type, which the source's own classes would refuse too
            stated = tuple(name for name in rule.defaults if name in numbers) or tuple(rule.defaults)
            translation.refuses(stated, str(error))
    reported = {name for line in translation.lines for name in line.fields}
    for name in numbers.keys() & defaults.keys() - reported:
        # every rule reports the fields it used, so the source ignores this one too
        translation.leaves(name, "the same here")
    unknown = {name: value for name, value in numbers.items() if name not in defaults}
    translation.lines += [_unknown(name, value, defaults) for name, value in unknown.items()]
    return translation


def _unknown(name: str, value: Any, fields: Iterable[str]) -> Line:
    alike = "".join(f"; did you mean {other}?" for other in get_close_matches(name, fields, 1, ALIKE))
    why = f"unknown field{alike}"
    return Line((name,), (shown_value(name, value),), "unknown", why=why)
