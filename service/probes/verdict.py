"""What a probe's counts mean: can GRPO learn here, said in a sentence, and which fields to change.

Boundary: a pure function. GRPO learns from differences inside a group, so what counts is how many groups
have any; the rest explains why they have none, or why their rewards may mislead. The first rule that speaks
decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from grpo_engine.config.job import ReinforcementHyperparameters
from grpo_engine.contract.events import Probed

CanLearn = Literal["yes", "no", "maybe"]
FEW_SIGNAL_SHARE = 0.25
"""With fewer groups that teach anything, most of a job's time is spent on sampling for nothing."""
MANY_CUT_SHARE = 0.25
"""With more, the reward measures length as much as it measures the answer."""
MANY_ERRORS_SHARE = 0.05
METHOD = "method.reinforcement"
LIMIT = f"{METHOD}.hyperparameters.max_completion_tokens"


@dataclass(frozen=True)
class Advice:
    """A field of the request, and what to do with it."""

    param: str
    message: str


@dataclass(frozen=True)
class Verdict:
    can_learn: CanLearn
    sentence: str
    advice: tuple[Advice, ...] = ()


Rule = Callable[[Probed, ReinforcementHyperparameters], Verdict | None]

EASIER = Advice("training_file", "Use easier prompts, of which the model gets some right.")
HARDER = Advice("training_file", "Use harder prompts, of which the model gets some wrong.")
SUPERVISED = Advice(
    "method.type", "Train on demonstrations first (supervised), then from that model with GRPO."
)
GRADER = Advice(f"{METHOD}.grader", "Test the grader on such a completion; fix it or the rows it reads.")
LARGER_GROUP = Advice(
    f"{METHOD}.hyperparameters.group_size", "With more completions per prompt, rewards differ more often."
)
HOTTER = Advice(f"{METHOD}.hyperparameters.temperature", "A higher temperature makes completions differ.")
REPLACE = Advice(
    f"{METHOD}.hyperparameters.dynamic_sampling",
    "Use 1 to 3 rounds to replace groups without signal with new prompts.",
)


def judge(facts: Probed, settings: ReinforcementHyperparameters) -> Verdict:
    """The verdict on a probe with at least one completion."""
    rules: tuple[Rule, ...] = (_broken_grader, _no_signal, _cut, _little_signal, _some_errors)
    found = next((verdict for rule in rules if (verdict := rule(facts, settings))), None)
    return found or Verdict("yes", f"{_differences(facts)}: GRPO can learn here.")


def _broken_grader(facts: Probed, settings: ReinforcementHyperparameters) -> Verdict | None:
    """A job would end with `grader_contract`."""
    allowed = settings.max_grader_error_rate * facts.completions
    if facts.mean_reward is not None and facts.grader_errors <= allowed:
        return None
    return Verdict("no", _complaint(facts), (GRADER,))


def _no_signal(facts: Probed, settings: ReinforcementHyperparameters) -> Verdict | None:
    if facts.groups_with_signal:
        return None
    scored = facts.completions - facts.grader_errors
    if facts.passed == scored:
        return Verdict(
            "no", "Every completion is right already: nothing to learn; use harder prompts.", (HARDER,)
        )
    if (facts.highest_reward or 0.0) <= 0:
        return _hopeless(facts, settings)
    sentence = (
        f"No group of {facts.prompts} had two different rewards, so there is nothing to compare; "
        "raise temperature or group_size, or use a grader that tells better from worse."
    )
    return Verdict("no", sentence, (HOTTER, LARGER_GROUP, GRADER))


def _hopeless(facts: Probed, settings: ReinforcementHyperparameters) -> Verdict:
    """No completion scored; if most were cut, that may be the only reason."""
    none = f"0 of {facts.completions} completions scored"
    if facts.truncated >= facts.completions / 2:
        sentence = f"{none}, but {_share_cut(facts, settings)}: raise max_completion_tokens and probe again."
        return Verdict("maybe", sentence, (_longer(settings), EASIER))
    sentence = f"{none}: the base model cannot do this yet; start with supervised fine-tuning."
    return Verdict("no", sentence, (SUPERVISED, EASIER))


def _cut(facts: Probed, settings: ReinforcementHyperparameters) -> Verdict | None:
    if facts.truncated < MANY_CUT_SHARE * facts.completions:
        return None
    sentence = f"{_share_cut(facts, settings)}: raise max_completion_tokens."
    return Verdict("maybe", sentence, (_longer(settings),))


def _little_signal(facts: Probed, settings: ReinforcementHyperparameters) -> Verdict | None:
    if facts.groups_with_signal >= FEW_SIGNAL_SHARE * facts.prompts:
        return None
    without = facts.prompts - facts.groups_with_signal
    too_easy = 2 * facts.groups_solved > without
    why = f"{facts.groups_solved} are solved already" if too_easy else "in most the model never succeeds"
    sentence = (
        f"Only {facts.groups_with_signal} of {facts.prompts} groups had different rewards ({why}): most of "
        f"the sampling would teach nothing; use {'harder' if too_easy else 'easier'} prompts or a larger "
        "group_size."
    )
    return Verdict("maybe", sentence, (HARDER if too_easy else EASIER, LARGER_GROUP, REPLACE))


def _some_errors(facts: Probed, settings: ReinforcementHyperparameters) -> Verdict | None:
    if facts.grader_errors < MANY_ERRORS_SHARE * facts.completions or not facts.grader_errors:
        return None
    return Verdict("maybe", _complaint(facts), (GRADER,))


def _complaint(facts: Probed) -> str:
    return (
        f"The grader failed on {facts.grader_errors} of {facts.completions} completions: {facts.grader_error}"
    )


def _share_cut(facts: Probed, settings: ReinforcementHyperparameters) -> str:
    share = facts.truncated / facts.completions
    return f"{share:.0%} of the completions were cut at {settings.max_completion_tokens} tokens"


def _longer(settings: ReinforcementHyperparameters) -> Advice:
    return Advice(
        LIMIT, f"Try {2 * settings.max_completion_tokens}; longer completions cost memory and time."
    )


def _differences(facts: Probed) -> str:
    how = f"In {facts.groups_with_signal} of {facts.prompts} groups the rewards differ"
    if facts.passed:
        return f"{how}, and {facts.passed} of {facts.completions} completions are right"
    return f"{how}, with {facts.mean_reward:.2f} on average"
