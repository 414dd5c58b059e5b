"""Why steps trained nothing, and when the job fails because of them."""

from collections.abc import Sequence

from grpo_engine.config.job import ReinforcementHyperparameters
from grpo_engine.contract.errors import NoSignalError
from grpo_engine.contract.events import SkipReason
from grpo_engine.objective.metrics import PASS_REWARD, reward_metrics, tool_metrics
from grpo_engine.objective.types import ScoredGroup

SKIP_CAUSES: dict[SkipReason, str] = {
    "nothing_scored": "without a scored completion",
    "no_signal": "without signal",
    "all_masked": "whose completions were all masked",
    "nothing_to_distil": "without an attempt to distil",
}
SKIP_HINTS: dict[SkipReason, str] = {
    "nothing_scored": "Read the errors in the rollouts, and correct the grader or the environment.",
    "all_masked": "Every completion was truncated, and mask_truncated_completions leaves truncated ones out. "
    "Raise max_completion_tokens or set mask_truncated_completions to false.",
    "nothing_to_distil": "No failed attempt has feedback. self_distillation.alone needs a grader with "
    "feedback or successful siblings. Raise success_reward or set alone to false.",
}
"""What to do if nothing could be trained for another reason than equal rewards."""
SOLVED_HINT = (
    "Every completion of the last step earned the full reward: the model can do this already. "
    "Use harder rows, or a grader that accepts less."
)
CALLS_HINT = (
    "Most tool calls of the last step failed, so the model read errors instead of results. Read them in the "
    "rollouts, and check the tools' server."
)
MOST = 0.5
"""Share of failed tool calls above which the hint is about them."""


def skip_reason(scored: Sequence[ScoredGroup], settings: ReinforcementHyperparameters) -> SkipReason:
    """Why a step with these groups trained nothing."""
    if all(score.reward is None for group in scored for score in group.scores):
        return "nothing_scored"
    if not any(each.has_signal for each in scored):
        return "no_signal"
    distillation = settings.self_distillation
    return "nothing_to_distil" if distillation and distillation.alone else "all_masked"


def fail_without_signal(
    step: int, skipped_in_a_row: int, scored_P: Sequence[ScoredGroup], settings: ReinforcementHyperparameters
) -> None:
    """Raise NoSignalError after `max_skipped_steps` steps in a row that trained nothing."""
    if skipped_in_a_row < settings.max_skipped_steps:
        return
    reason = skip_reason(scored_P, settings)
    hint = SOLVED_HINT if _all_right(scored_P) else SKIP_HINTS.get(reason)
    evidence = []
    if reason != "nothing_scored":
        evidence.append(f"mean reward of step {step}: {reward_metrics(scored_P)['reward']:.3f}")
    failed = _failed_calls(scored_P)
    if hint is None and failed > MOST:
        hint = CALLS_HINT
        evidence.append(f"failed tool calls of step {step}: {failed:.0%}")
    message = f"{skipped_in_a_row} steps in a row {SKIP_CAUSES[reason]}, up to step {step}"
    if skipped_in_a_row == 1:
        message = f"step {step} {SKIP_CAUSES[reason]}"
    raise NoSignalError(message, hint=hint, evidence=tuple(evidence))


def _failed_calls(scored: Sequence[ScoredGroup]) -> float:
    """Share of the tool calls that failed; 0 without calls."""
    completions = [completion for each in scored for completion in each.group.completions]
    return tool_metrics(completions).get("tools/error_rate", 0.0)


def _all_right(scored: Sequence[ScoredGroup]) -> bool:
    """Whether every completion earned the full reward."""
    rewards = [score.reward for group in scored for score in group.scores]
    return bool(rewards) and all(reward is not None and reward >= PASS_REWARD for reward in rewards)
