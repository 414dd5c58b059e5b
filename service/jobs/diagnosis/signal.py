"""Rules about the learning signal, the reward's trend and the evaluation.

Boundary: pure rules over a run. Thresholds that a guard has too are the guard's.
"""

from typing import Any, NamedTuple

from grpo_engine.config.guards import DEFAULT_THRESHOLDS
from service.jobs.diagnosis.findings import Change, DiagnosisFinding, finding, number, rounded
from service.jobs.diagnosis.run import MIN_STEPS, Run

MAJORITY = 0.6
"""One cause is named if it explains more than this share of the groups without signal."""
MAX_GROUP_SIZE = 64
"""Beyond it, more completions of a prompt that the model cannot solve are mostly more failures."""
ROUNDS = 3
"""DAPO's own number of rounds of dynamic sampling, in our recipe."""
NEARLY_ALL = 0.9
"""Share of cut completions from which the model's answers are unknown."""
FEWEST_TOKENS, MAX_TOKENS = 16, 131_072
FEW_ROWS = 100
"""Fewest held-out rows; a 95 % interval over fewer is wider than what training usually gains (10 points)."""
STILL_NATS = 0.01
"""KL of a completion below which the policy has hardly moved."""
SIGNAL = "frac_reward_zero_std"
SIGNAL_LIMIT = DEFAULT_THRESHOLDS["no_signal"]


class Reason(NamedTuple):
    """Why groups have no signal."""

    cause: str
    """Cause of most groups without signal; empty if no single one explains most of them."""
    advice: str
    change: Change
    evidence: list[str]


def few_signals(run: Run) -> DiagnosisFinding | None:
    """Most groups earn one and the same reward."""
    share = run.recent(SIGNAL)
    if share is None or share.mean < SIGNAL_LIMIT or run.failure_code == "no_signal":
        return None
    reason = without_signal(run)
    cause = "In most groups all completions earn the same reward; such groups give no signal."
    evidence = [f"{share} (limit {SIGNAL_LIMIT:g})", *reason.evidence]
    return finding("few_signals", reason.cause or cause, evidence, reason.advice, reason.change)


def without_signal(run: Run) -> Reason:
    """The reason, from the stored groups, and the change that helps."""
    groups = run.groups
    evidence = [groups.text()] if groups.num else []
    if groups.num_wrong > MAJORITY * groups.num_flat:
        return _too_hard(run, evidence)
    if groups.num_right > MAJORITY * groups.num_flat:
        cause = "In almost every group all completions are right: the model can do this task already."
        advice = (
            "Use harder prompts, or stop here; dynamic sampling finds the prompts that still give signal."
        )
    else:
        cause = ""
        advice = "Replace groups without signal with new prompts, or use a grader with finer scores."
    if run.settings.get("dynamic_sampling", ROUNDS) >= ROUNDS:
        return Reason(cause, advice, {"field": "training_file"}, evidence)
    return Reason(cause, advice, run.setting("dynamic_sampling", ROUNDS), evidence)


def _too_hard(run: Run, evidence: list[str]) -> Reason:
    cut = run.recent("completions/clipped_ratio")
    if cut and cut.mean >= NEARLY_ALL:
        cause = "In almost every group all completions are wrong, and almost every completion is cut."
        advice = "Allow more tokens to see whether the model can do this task."
        return Reason(cause, advice, more_tokens(run), [*evidence, str(cut)])
    cause = "In almost every group all completions are wrong: the model cannot do this task yet."
    advice = (
        "Start with supervised fine-tuning on correct answers, use easier prompts, or use a grader that "
        "rewards partial progress. More completions per prompt find rare correct ones."
    )
    size = run.settings.get("group_size", MAX_GROUP_SIZE)
    if size >= MAX_GROUP_SIZE:
        return Reason(cause, advice, {"field": "training_file"}, evidence)
    return Reason(cause, advice, run.setting("group_size", min(MAX_GROUP_SIZE, 2 * size)), evidence)


def more_tokens(run: Run) -> Change:
    """Room for completions that are cut."""
    tokens = max(FEWEST_TOKENS, 2 * run.settings["max_completion_tokens"])
    return run.setting("max_completion_tokens", min(MAX_TOKENS, tokens))


def flat_reward(run: Run) -> DiagnosisFinding | None:
    """Groups have signal, but the reward does not rise."""
    trend, share = run.trend("reward"), run.recent(SIGNAL)
    if trend is None or trend.is_shown or (share and share.mean >= SIGNAL_LIMIT):
        return None
    evidence, moved = trend.evidence, ""
    kl, length = run.recent("kl"), run.recent("completions/mean_length")
    if kl and length:
        nats = kl.mean * length.mean
        evidence.append(f"{kl}, {number(nats)} nats a completion")
        moved = ", and the policy has hardly moved" if nats < STILL_NATS else ""
    cause = f"The reward does not rise although groups have signal{moved}."
    advice = "Raise the learning rate. If the reward is high already, stop here."
    change = run.setting("learning_rate", min(1.0, rounded(3 * run.settings["learning_rate"])))
    return finding("reward_flat", cause, evidence, advice, change)


def not_held_out(run: Run) -> DiagnosisFinding | None:
    """The training reward rises, held-out rows gain nothing: memorisation, or an exploited grader."""
    trend, verdict = run.trend("reward"), run.evaluation.get("verdict") or {}
    low = verdict.get("low")
    if trend is None or not trend.rises or low is None or low > 0:
        return None
    cause = (
        "The training reward rises and the held-out reward does not: "
        "the model memorises the rows, or exploits the grader."
    )
    advice = "Inspect the best rollouts (filter=best) for exploits; keep the policy closer to the reference."
    evidence = [*trend.evidence, _interval(run, verdict)]
    return finding("not_held_out", cause, evidence, advice, closer_to_reference(run))


def closer_to_reference(run: Run) -> Change:
    """A larger beta, or a smaller learning rate if the method has no beta."""
    alone = (run.settings.get("self_distillation") or {}).get("alone")
    if run.kind == "reinforcement" and not alone:
        beta = run.settings["beta"]
        return run.setting("beta", min(100.0, rounded(2 * beta)) if beta else 0.04)
    return lower_learning_rate(run)


def lower_learning_rate(run: Run) -> Change:
    """A third of the learning rate."""
    if "learning_rate" not in run.settings:
        return {"field": f"method.{run.kind}.hyperparameters"}
    return run.setting("learning_rate", rounded(run.settings["learning_rate"] / 3))


def not_shown(run: Run) -> DiagnosisFinding | None:
    """The evaluation's interval includes 0, and `not_held_out` does not apply."""
    verdict = run.evaluation.get("verdict") or {}
    low, high = verdict.get("low"), verdict.get("high")
    if low is None or high is None or not low <= 0 <= high or not_held_out(run):
        return None
    cause = "The evaluation shows no significant difference: its 95% interval includes 0."
    advice, change = "Train longer.", _more_steps(run)
    if verdict["rows"] < FEW_ROWS:
        advice = f"{verdict['rows']} rows were compared. Use {FEW_ROWS} or more; up to 256 are used."
        change = {"field": "validation_file"}
    return finding("not_shown", cause, [_interval(run, verdict)], advice, change, "info")


def _interval(run: Run, verdict: Any) -> str:
    low, high = number(verdict["low"]), number(verdict["high"])
    step = (run.evaluation.get("last") or {}).get("step", run.step)
    between = f"95% CI {low} to {high}"
    return f"evaluation of step {step} against step 0, {verdict['rows']} rows: {verdict['text']}; {between}"


def too_few_steps(run: Run) -> DiagnosisFinding | None:
    """Too early to judge."""
    num_steps = len(run.series("loss")) or len(run.series("reward"))
    if num_steps >= MIN_STEPS or run.failure is not None or (not num_steps and not run.is_over):
        return None
    cause = "There are too few steps to tell whether the job learns."
    evidence = [f"{run.step} of {run.total_steps} steps done; trends need at least {MIN_STEPS}"]
    if not run.is_over and run.total_steps >= MIN_STEPS:
        return finding("too_few_steps", cause, evidence, "Wait.", {}, "info")
    return finding("too_few_steps", cause, evidence, "Train longer.", _more_steps(run), "info")


def _more_steps(run: Run) -> Change:
    return run.setting("n_steps", max(5 * MIN_STEPS, 2 * run.total_steps))
