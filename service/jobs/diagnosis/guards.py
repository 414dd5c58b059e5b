"""The guards' warnings: one finding for all warnings of a guard."""

import re
from collections.abc import Collection, Sequence
from typing import Any

from grpo_engine.config.guards import Guard, watch
from service.jobs.diagnosis.findings import DiagnosisFinding, finding
from service.jobs.diagnosis.run import GuardWarning, Run

BROKEN = frozenset({"reward_fell", "learning_rate_too_high"})
SILENT = frozenset(
    {"few_signals", "entropy_collapse", "no_signal", "already_solved", "not_held_out", "truncation"}
)
JUDGED: dict[str, frozenset[str]] = {
    "guard_kl": BROKEN | {"kl_explosion"},
    "guard_no_signal": BROKEN | SILENT,
    "guard_entropy": BROKEN | {"entropy_collapse"},
    "guard_truncation": BROKEN | {"truncation", "length_hacking"},
    "guard_grader_errors": frozenset({"grader_errors"}),
    "guard_reward_plateau": BROKEN | {"reward_flat", "already_solved"},
    "guard_reward_length": frozenset({"length_hacking", "longer_completions"}),
}
"""Guard → the findings about the same observation or its cause, beside which its warnings say nothing new and
may advise the opposite."""


WHEN = re.compile(r"(for \d+ steps in a row, up to|in) step \d+(?=\.)")
"""The part of a warning that says when the guard tripped."""


def guard_findings(run: Run, known: Collection[str]) -> list[DiagnosisFinding]:
    """One finding for each guard that warned, as information only: the rules judge the whole run.

    `known`: codes of the rules' findings. None for a guard whose observation one of them judges.
    """
    warnings: dict[str, list[GuardWarning]] = {}
    for warning in run.guards:
        warnings.setdefault(warning.code, []).append(warning)
    return [
        _finding(run, code, each)
        for code, each in warnings.items()
        if JUDGED.get(code, frozenset()).isdisjoint(known)
    ]


def _finding(run: Run, code: str, warnings: Sequence[GuardWarning]) -> DiagnosisFinding:
    """The newest warning: its first sentence says what happened, the others what to do."""
    cause, *advice = re.split(r"(?<=\.) (?=[A-Z])", warnings[-1].message, maxsplit=1)
    if held := _held(run, code, warnings[-1].step):
        first, last = held
        when = f"since step {first}" if last == run.last_step else f"in steps {first} to {last}"
        cause = WHEN.sub(f"at step {warnings[-1].step}, and past the limit {when}", cause)
    found = finding(code, cause, [], "".join(advice), {}, "info")
    counts = {"count": len(warnings), "first_step": warnings[0].step, "last_step": warnings[-1].step}
    return found.model_copy(update=counts)


def _held(run: Run, code: str, tripped: int) -> tuple[int, int] | None:
    """First and last step of the unbroken observation around the step at which the guard tripped.

    None if the stored metrics do not show it.
    """
    guards = [Guard.model_validate(one) for one in run.settings.get("guards") or ()]
    state: dict[str, Any] = {}
    held: list[int] = []
    for row in run.metrics:
        if "reward" not in row:
            continue
        _, state = watch(guards, row["step"], row, state)
        holds = any(
            f"guard_{guard.watch}" == code and count
            for guard, count in zip(guards, state["counts"], strict=True)
        )
        if holds:
            held.append(row["step"])
        elif tripped in held:
            break
        else:
            held = []
    return (held[0], held[-1]) if tripped in held else None
