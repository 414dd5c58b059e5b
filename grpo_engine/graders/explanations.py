"""Explanations of a score for people: each test of a `code_tests`, each step of a `process`.

They hold expected results, so no prompt, lesson or feedback is made from them. Their number and size are
bounded, whatever a completion prints.
"""

from collections.abc import Iterable, Mapping, Sequence

from grpo_engine.contract.records import MAX_EXPLANATION_CHARACTERS, Explanation, storable

MAX_ENTRIES = 12
"""Entries of one part."""
MAX_PARTS = 4
"""Explained parts of one completion."""


def explanation(
    label: str,
    *,
    passed: bool | None = None,
    score: float | None = None,
    got: str = "",
    expected: str = "",
    detail: str = "",
) -> Explanation:
    """An entry whose texts are cut in the middle at MAX_EXPLANATION_CHARACTERS."""
    return Explanation(
        label=_cut(label),
        passed=passed,
        score=score,
        got=_cut(got),
        expected=_cut(expected),
        detail=_cut(detail),
    )


def shown(entries: Sequence[Explanation]) -> tuple[Explanation, ...]:
    """At most MAX_ENTRIES entries in their order: the worst ones, and a last one that counts the rest."""
    if len(entries) <= MAX_ENTRIES:
        return tuple(entries)
    worst_first = sorted(range(len(entries)), key=lambda place: (_worth(entries[place]), place))
    kept, others = worst_first[: MAX_ENTRIES - 1], worst_first[MAX_ENTRIES - 1 :]
    passed = sum(entries[place].passed is True for place in others)
    counts = f"{passed} passed, {len(others) - passed} did not"
    return (*(entries[place] for place in sorted(kept)), explanation(f"{len(others)} more", detail=counts))


def joined(
    parts: Iterable[tuple[str, Mapping[str, Sequence[Explanation]]]],
) -> dict[str, tuple[Explanation, ...]]:
    """The explanations of a multi's parts by key, for the first MAX_PARTS parts that have any."""
    found = {key: tuple(entry for each in own.values() for entry in each) for key, own in parts if own}
    return dict(list(found.items())[:MAX_PARTS])


def _worth(entry: Explanation) -> float:
    return entry.score if entry.score is not None else float(entry.passed is True)


def _cut(text: str) -> str:
    text = storable(text)
    if len(text) <= MAX_EXPLANATION_CHARACTERS:
        return text
    end = MAX_EXPLANATION_CHARACTERS // 3
    return f"{text[: MAX_EXPLANATION_CHARACTERS - end - 1]}…{text[-end:]}"
