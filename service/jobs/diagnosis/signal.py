"""Whether there is something to learn from, whether it is learnt, and whether that is shown.

Boundary: pure rules over a run. Thresholds that a guard has too are the guard's.
"""

from __future__ import annotations

from typing import Any

from grpo_engine.config.guards import DEFAULT_THRESHOLDS
from service.jobs.diagnosis.findings import DiagnosisFinding, number, rounded
from service.jobs.diagnosis.run import MIN_STEPS, Run

MAJORITY = 0.6
"""From this share of the groups without signal on, one reason is named for all of them."""
MAX_GROUP_SIZE = 64
"""Beyond it more completions of a hopeless prompt are mostly more failures."""
ROUNDS = 3
"""DAPO's own number of rounds of dynamic sampling, in our recipe."""
NEARLY_ALL = 0.9
"""From this share of cut completions on, nothing is known of what the model would have said."""
FEWEST_TOKENS, MAX_TOKENS = 16, 131_072
FEW_ROWS = 100
"""With fewer held-out rows a 95 % interval is wider than what training usually gains (10 points)."""
STILL_NATS = 0.01
"""KL of a completion below which the policy has hardly moved."""
SIGNAL = "frac_reward_zero_std"


def few_signals(run: Run) -> DiagnosisFinding | None:
    """Most groups earn one and the same reward."""
    share = run.recent(SIGNAL)
    if share is None or share.mean < DEFAULT_THRESHOLDS["no_signal"] or _ended_for_it(run):
        return None
    evidence = [f"{share.text(SIGNAL)} (limit {DEFAULT_THRESHOLDS['no_signal']:g})"]
    cause = "In most groups all completions earn the same reward; such groups give no signal."
    return without_signal(run, run.finding("few_signals", cause, evidence, ""))


def _ended_for_it(run: Run) -> bool:
    return run.failure is not None and run.failure["code"] == "no_signal"


def without_signal(run: Run, found: DiagnosisFinding) -> DiagnosisFinding:
    """The reason, from the stored groups, and the change that helps."""
    groups = run.groups
    evidence = [*found.evidence, *([groups.text()] if groups.num else [])]
    found = found.model_copy(update={"evidence": evidence})
    if groups.num_wrong > MAJORITY * groups.num_flat:
        return _too_hard(run, found)
    if groups.num_right > MAJORITY * groups.num_flat:
        return _too_easy(run, found)
    advice = "Replace groups without signal with new prompts, or use a grader with finer scores."
    return _more_rounds(run, found.model_copy(update={"advice": advice}))


def _too_hard(run: Run, found: DiagnosisFinding) -> DiagnosisFinding:
    cut = run.recent("completions/clipped_ratio")
    if cut and cut.mean >= NEARLY_ALL:
        cause = "In almost every group all completions are wrong, and almost every completion is cut."
        evidence = [*found.evidence, cut.text("completions/clipped_ratio")]
        advice = "Allow more tokens to see whether the model can do this task."
        return longer(run, found.model_copy(update={"cause": cause, "advice": advice, "evidence": evidence}))
    cause = "In almost every group all completions are wrong: the model cannot do this task yet."
    advice = (
        "Start with supervised fine-tuning on correct answers, use easier prompts, or use a grader that "
        "rewards partial progress. More completions per prompt find rare correct ones."
    )
    found = found.model_copy(update={"cause": cause, "advice": advice})
    size = run.settings.get("group_size", MAX_GROUP_SIZE)
    if size >= MAX_GROUP_SIZE:
        return run.at(found, "training_file")
    return run.setting(found, "group_size", min(MAX_GROUP_SIZE, 2 * size))


def longer(run: Run, found: DiagnosisFinding) -> DiagnosisFinding:
    """Room for completions that are cut."""
    tokens = max(FEWEST_TOKENS, 2 * run.settings["max_completion_tokens"])
    return run.setting(found, "max_completion_tokens", min(MAX_TOKENS, tokens))


def _too_easy(run: Run, found: DiagnosisFinding) -> DiagnosisFinding:
    cause = "In almost every group all completions are right: the model can do this task already."
    advice = "Use harder prompts, or stop here; dynamic sampling finds the prompts that still give signal."
    return _more_rounds(run, found.model_copy(update={"cause": cause, "advice": advice}))


def _more_rounds(run: Run, found: DiagnosisFinding) -> DiagnosisFinding:
    if run.settings.get("dynamic_sampling", ROUNDS) >= ROUNDS:
        return run.at(found, "training_file")
    return run.setting(found, "dynamic_sampling", ROUNDS)


def flat_reward(run: Run) -> DiagnosisFinding | None:
    """Groups have signal, but the reward does not rise."""
    trend, share = run.trend("reward"), run.recent(SIGNAL)
    if trend is None or trend.is_shown or (share and share.mean >= DEFAULT_THRESHOLDS["no_signal"]):
        return None
    kl, length = run.recent("kl"), run.recent("completions/mean_length")
    nats = kl.mean * length.mean if kl and length else None
    still = nats is not None and nats < STILL_NATS
    moved = [f"{kl.text('kl')}, {number(nats)} nats a completion"] if kl and nats is not None else []
    how = ", and the policy has hardly moved" if still else ""
    cause = f"The reward does not rise although groups have signal{how}."
    advice = "Raise the learning rate. If the reward is high already, stop here."
    found = run.finding("reward_flat", cause, [*trend.evidence, *moved], advice)
    return run.setting(found, "learning_rate", _faster(run))


def _faster(run: Run) -> float:
    return min(1.0, rounded(3 * run.settings["learning_rate"]))


def not_held_out(run: Run) -> DiagnosisFinding | None:
    """The training reward rises, held-out rows gain nothing: memory, or a grader that is tricked."""
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
    return closer(run, run.finding("not_held_out", cause, evidence, advice))


def closer(run: Run, found: DiagnosisFinding) -> DiagnosisFinding:
    """A larger beta, or a smaller learning rate if the method has no beta."""
    alone = (run.settings.get("self_distillation") or {}).get("alone")
    if run.kind == "reinforcement" and not alone:
        beta = run.settings["beta"]
        return run.setting(found, "beta", min(100.0, rounded(2 * beta)) if beta else 0.04)
    return calmer(run, found)


def calmer(run: Run, found: DiagnosisFinding) -> DiagnosisFinding:
    """A third of the learning rate."""
    if "learning_rate" not in run.settings:
        return run.at(found, f"method.{run.kind}.hyperparameters")
    return run.setting(found, "learning_rate", rounded(run.settings["learning_rate"] / 3))


def not_shown(run: Run) -> DiagnosisFinding | None:
    """The evaluation's interval includes 0, and `not_held_out` does not apply."""
    verdict = run.evaluation.get("verdict") or {}
    low, high = verdict.get("low"), verdict.get("high")
    if low is None or high is None or not low <= 0 <= high or not_held_out(run):
        return None
    cause = "The evaluation shows no significant difference: its 95% interval includes 0."
    found = run.finding("not_shown", cause, [_interval(run, verdict)], "", severity="info")
    if verdict["rows"] < FEW_ROWS:
        advice = f"{verdict['rows']} rows were compared. Use {FEW_ROWS} or more; up to 256 are used."
        return run.at(found.model_copy(update={"advice": advice}), "validation_file")
    return _longer(run, found.model_copy(update={"advice": "Train longer."}))


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
    found = run.finding("too_few_steps", cause, evidence, "Train longer.", severity="info")
    if not run.is_over and run.total_steps >= MIN_STEPS:
        return found.model_copy(update={"advice": "Wait."})
    return _longer(run, found)


def _longer(run: Run, found: DiagnosisFinding) -> DiagnosisFinding:
    return run.setting(found, "n_steps", max(5 * MIN_STEPS, 2 * run.total_steps))
