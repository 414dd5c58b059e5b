"""Judges a probe's counts: whether GRPO can learn from these prompts, and which fields to change.

Boundary: a pure function. GRPO learns from differences within a group, so the number of groups with
differences decides; the rest explains why there are none, or why the rewards may mislead.
"""

from dataclasses import dataclass, replace
from math import exp
from typing import Literal

from grpo_engine.config.job import ReinforcementHyperparameters
from grpo_engine.contract.events import Probed
from service.probes.schemas import AdviceRead

CanLearn = Literal["yes", "no", "maybe"]
FEW_SIGNAL_SHARE = 0.25
"""Least share of groups with signal; below it, most of a job's sampling is useless."""
MANY_CUT_SHARE = 0.25
"""Largest share of cut completions; above it, the reward measures length as much as the answer."""
MANY_ERRORS_SHARE = 0.05
SOLVED_SHARE = 0.95
"""Share of right completions from which almost nothing is left to learn."""
NOISE_NATS = 2.0
"""Mean −log(probability) of a token above which text has no sense; chat models are below 1."""
METHOD = "method.reinforcement"
SETTINGS = f"{METHOD}.hyperparameters"


@dataclass(frozen=True)
class Verdict:
    can_learn: CanLearn
    sentence: str
    advice: tuple[AdviceRead, ...] = ()


def _advice(param: str, message: str, value: str | float | int | None = None) -> AdviceRead:
    return AdviceRead(param=param, message=message, value=value)


EASIER = _advice("training_file", "Use easier prompts, of which the model gets some right.")
HARDER = _advice("training_file", "Use harder prompts, of which the model gets some wrong.")
SUPERVISED = _advice(
    "method.type",
    "Train on demonstrations first (supervised), then from that model with GRPO.",
    "supervised",
)
GRADER = _advice(f"{METHOD}.grader", "Test the grader on such a completion; fix it or the rows it reads.")
SERVER = _advice(f"{METHOD}.environments", "Fix the server, or raise timeout_seconds if it is slow.")
REPLACE = _advice(
    f"{SETTINGS}.dynamic_sampling", "Use 1 to 3 rounds to replace groups without signal with new prompts.", 2
)
LARGEST_GROUP = 64
"""No larger group_size is recommended; its cost grows in proportion."""
TEMPERATURE_STEP = 0.2
MAX_TEMPERATURE = 1.4
"""Above it, the text of most models becomes incoherent."""
GREEDY_FACTOR = 2.0
"""If greedy completions earn this many times more than sampled ones, the temperature is too high."""


def judge(facts: Probed, settings: ReinforcementHyperparameters) -> Verdict:
    """The verdict on a probe with at least one completion, with the temperature that it holds for."""
    found = _judge(facts, settings)
    if found.advice in ((GRADER,), (SERVER,)):
        return found
    how = f"Sampled at temperature {settings.temperature:g}."
    if facts.greedy_completions:
        how = f"{how[:-1]}; of the greedy completions, {_greedy_result(facts)}."
    return replace(found, sentence=f"{found.sentence} {how}")


def _greedy_result(facts: Probed) -> str:
    right = f"{facts.greedy_passed} of {facts.greedy_completions} are right"
    return right if facts.greedy_passed else f"{right}, with {facts.greedy_mean_reward or 0:.2f} on average"


def _judge(facts: Probed, settings: ReinforcementHyperparameters) -> Verdict:
    """The first condition that holds decides."""
    by_grader = facts.grader_errors - facts.failed_sessions
    if facts.mean_reward is None or by_grader > settings.max_grader_error_rate * facts.completions:
        # a job would end with `grader_contract` or `environment_unreachable`
        return _unscored("no", facts, settings)
    if not facts.groups_with_signal:
        return _no_signal(facts, settings)
    if _is_noise(facts):
        return _noise(facts)
    if _is_solved(facts):
        return _solved(facts)
    if facts.truncated >= MANY_CUT_SHARE * facts.completions:
        sentence = f"{_share_cut(facts, settings)}: raise {_limits(facts)}."
        return Verdict("maybe", sentence, (_longer(settings),))
    if facts.groups_with_signal < FEW_SIGNAL_SHARE * facts.prompts:
        return _little_signal(facts, settings)
    if facts.grader_errors and facts.grader_errors >= MANY_ERRORS_SHARE * facts.completions:
        return _unscored("maybe", facts, settings)
    how = f"with {facts.mean_reward:.2f} on average"
    if facts.passed:
        how = f"and {facts.passed} of {facts.completions} completions are right"
    differ = f"In {facts.groups_with_signal} of {facts.prompts} groups the rewards differ"
    return Verdict("yes", f"{differ}, {how}: GRPO can learn here.")


def _no_signal(facts: Probed, settings: ReinforcementHyperparameters) -> Verdict:
    if facts.passed == facts.completions - facts.grader_errors:
        sentence = "Every completion is right already: nothing to learn; use harder prompts."
        return Verdict("no", sentence, (HARDER,))
    if (facts.highest_reward or 0.0) <= 0:
        return _nothing_scored(facts, settings)
    sentence = (
        f"No group of {facts.prompts} had two different rewards, so there is nothing to compare; "
        "raise temperature or group_size, or use a grader that distinguishes better from worse."
    )
    return Verdict("no", sentence, (_hotter(settings), _larger_group(settings), GRADER))


def _nothing_scored(facts: Probed, settings: ReinforcementHyperparameters) -> Verdict:
    """The verdict if no completion scored. If most were cut, that may be the only reason."""
    none = f"0 of {facts.completions} completions scored"
    if _is_better_greedily(facts):
        sentence = f"{none}, but greedy completions did: lower temperature and probe again."
        return Verdict("maybe", sentence, (_cooler(settings),))
    if _is_noise(facts):
        return _noise(facts)
    if facts.truncated >= facts.completions / 2:
        sentence = f"{none}, but {_share_cut(facts, settings)}: raise {_limits(facts)} and probe again."
        return Verdict("maybe", sentence, (_longer(settings), EASIER))
    sentence = f"{none}: the base model cannot do this yet; start with supervised fine-tuning."
    return Verdict("no", sentence, (SUPERVISED, EASIER))


def _is_noise(facts: Probed) -> bool:
    """Whether the completions are cut because they are close to random text, not because they are long."""
    is_cut = facts.truncated >= facts.completions / 2
    is_wrong = facts.passed < MANY_ERRORS_SHARE * facts.completions
    return is_cut and is_wrong and (facts.token_surprise_nats or 0.0) >= NOISE_NATS


def _noise(facts: Probed) -> Verdict:
    choices = round(exp(facts.token_surprise_nats or 0.0))
    sentence = (
        f"{facts.passed} of {facts.completions} completions are right, and their text is close to random "
        f"(every token is a choice among about {choices}): the base model cannot do this yet, and longer "
        "completions do not help; start with supervised fine-tuning."
    )
    return Verdict("no", sentence, (SUPERVISED, EASIER))


def _is_solved(facts: Probed) -> bool:
    """Whether almost all sampled completions, or almost all greedy ones, earn the highest reward."""
    if (facts.highest_reward or 0.0) > 1:
        return False
    greedy = facts.greedy_completions and facts.greedy_passed >= SOLVED_SHARE * facts.greedy_completions
    return bool(greedy) or facts.passed >= SOLVED_SHARE * (facts.completions - facts.grader_errors)


def _solved(facts: Probed) -> Verdict:
    if facts.passed >= SOLVED_SHARE * (facts.completions - facts.grader_errors):
        right = f"{facts.passed} of {facts.completions} completions are right"
        return Verdict("no", f"The model already solves this: {right}; use harder prompts.", (HARDER,))
    sentence = (
        "Without randomness the model already solves this, so a held-out reward can hardly rise: only its "
        "sampled completions can improve; use harder prompts."
    )
    return Verdict("maybe", sentence, (HARDER,))


def _little_signal(facts: Probed, settings: ReinforcementHyperparameters) -> Verdict:
    if _is_better_greedily(facts):
        sentence = (
            f"Only {facts.groups_with_signal} of {facts.prompts} groups had different rewards, but greedy "
            "completions earn more: lower temperature and probe again."
        )
        return Verdict("maybe", sentence, (_cooler(settings), REPLACE))
    without = facts.prompts - facts.groups_with_signal
    too_easy = 2 * facts.groups_solved > without
    why = f"{facts.groups_solved} are solved already" if too_easy else "in most the model never succeeds"
    sentence = (
        f"Only {facts.groups_with_signal} of {facts.prompts} groups had different rewards ({why}): most of "
        f"the sampling would teach nothing; use {'harder' if too_easy else 'easier'} prompts, or raise "
        "group_size."
    )
    return Verdict("maybe", sentence, (HARDER if too_easy else EASIER, _larger_group(settings), REPLACE))


def _unscored(can_learn: CanLearn, facts: Probed, settings: ReinforcementHyperparameters) -> Verdict:
    """The verdict on completions without a reward, whose sessions or grader failed."""
    by_grader = facts.grader_errors - facts.failed_sessions
    if facts.failed_sessions > by_grader:
        failed = f"{facts.failed_sessions} of {facts.completions} sessions failed"
        return Verdict(can_learn, f"{failed}: {facts.session_failure}", (SERVER,))
    sentence = f"The grader failed on {by_grader} of {facts.completions} completions: {facts.grader_error}"
    if facts.truncated >= facts.completions / 2:  # no answer, or no episode's end, that could be scored
        sentence += f"; {_share_cut(facts, settings)}: raise {_limits(facts)}."
        return Verdict(can_learn, sentence, (_longer(settings), *(() if facts.turns else (GRADER,))))
    return Verdict(can_learn, sentence, (GRADER,))


def _share_cut(facts: Probed, settings: ReinforcementHyperparameters) -> str:
    share = facts.truncated / facts.completions
    turns = " or at the limit of turns" if facts.turns else ""
    return f"{share:.0%} of the completions were cut at {settings.max_completion_tokens} tokens{turns}"


def _limits(facts: Probed) -> str:
    return "max_completion_tokens or max_turns" if facts.turns else "max_completion_tokens"


def _longer(settings: ReinforcementHyperparameters) -> AdviceRead:
    length = 2 * settings.max_completion_tokens
    message = f"Try {length}; longer completions cost memory and time."
    return _advice(f"{SETTINGS}.max_completion_tokens", message, length)


def _larger_group(settings: ReinforcementHyperparameters) -> AdviceRead:
    size = min(2 * settings.group_size, LARGEST_GROUP)
    message = "With more completions per prompt, rewards differ more often."
    return _advice(f"{SETTINGS}.group_size", message, size if size > settings.group_size else None)


def _is_better_greedily(facts: Probed) -> bool:
    greedy = facts.greedy_mean_reward or 0.0
    return greedy > 0 and greedy >= GREEDY_FACTOR * (facts.mean_reward or 0.0)


def _cooler(settings: ReinforcementHyperparameters) -> AdviceRead:
    message = "The model is right more often at a lower temperature."
    return _advice(f"{SETTINGS}.temperature", message, round(settings.temperature / 2, 2))


def _hotter(settings: ReinforcementHyperparameters) -> AdviceRead:
    hotter = round(min(settings.temperature + TEMPERATURE_STEP, MAX_TEMPERATURE), 2)
    message = "A higher temperature makes completions differ."
    return _advice(f"{SETTINGS}.temperature", message, hotter if hotter > settings.temperature else None)
