"""Warns of options that have no effect in a job.

An expanded configuration has all options, so an option counts as set if its value differs from the default
and from the value that the recipe or the loss gives it.
"""

from collections.abc import Iterator
from typing import Any

from grpo_engine.config.guards import default_guards
from grpo_engine.config.job import Reinforcement, ReinforcementHyperparameters, ReinforcementMethod
from grpo_engine.config.recipes import CLIPS, RECIPES
from service.jobs.intake.report import Report

WITH_SPREAD = ("group_std", "batch_std", "reinforce_plus_plus", "gdpo", "process")
"""Advantages that divide by a standard deviation."""
OF_GRPO_LOSS = (
    *("loss_type", "advantage", "advantage_ddof", "delta", "epsilon_low", "epsilon_high"),
    *("sapo_temperature_positive", "sapo_temperature_negative", "entropy_coef", "top_entropy_quantile"),
    *("importance_correction", "importance_cap"),
)
"""Options that only the GRPO loss reads."""
CISPO_MIN = 1.0


def warn_of_unused_options(report: Report, has_validation: bool) -> None:
    """One warning for each such option of a reinforcement method; other methods have no such options."""
    method, warn = report.method, report.warn
    if not isinstance(method, Reinforcement):
        return
    settings = method.reinforcement.hyperparameters
    for reason, names in _unused(method.reinforcement, has_validation):
        for name in names:
            if getattr(settings, name) != _default(settings, name):
                warn("option_without_effect", f"{name} has no effect: {reason}.")
    if method.reinforcement.tools and not method.reinforcement.environments and settings.max_turns == 1:
        message = "tools have no effect: max_turns is 1, and calls of the last turn are not run."
        warn("option_without_effect", message)
    _warn_of_unmeasured_kl(report, settings)
    if settings.loss_type == "cispo" and settings.epsilon_high < CISPO_MIN:
        message = "epsilon_high bounds the ratio itself under cispo: below 1 it scales every update down."
        warn("cispo_bound_below_1", f"{message} 5 is usual.")
    if settings.loss_type == "reinforce" and settings.num_iterations > 1:
        message = "reinforce has no ratio to the policy that sampled: further iterations are uncorrected."
        warn("reinforce_iterations", f"num_iterations: {message}")


def _warn_of_unmeasured_kl(report: Report, settings: ReinforcementHyperparameters) -> None:
    if settings.beta > 0 or settings.guards == default_guards():
        return
    for index, guard in enumerate(settings.guards):
        if guard.watch == "kl":
            message = f"guards[{index}] has no effect: beta is 0, so the KL is not measured."
            report.warn("option_without_effect", message)


def _default(settings: ReinforcementHyperparameters, name: str) -> Any:
    """The option's value if the job does not set it."""
    default = type(settings).model_fields[name].get_default(call_default_factory=True)
    by_recipe = RECIPES[settings.recipe].get(name, default)
    return CLIPS.get(settings.loss_type, {}).get(name, by_recipe)


def _unused(method: ReinforcementMethod, has_validation: bool) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each reason, with the options that have no effect because of it."""
    settings = method.hyperparameters
    yield "the models of this service do not support it", ("reasoning_effort",)
    if settings.beta == 0:
        yield "beta is 0, so there is no KL term", ("kl_estimator", "kl_placement", "kl_ratio_weight")
    elif settings.kl_placement == "reward":
        yield "kl_placement is reward, so there is no KL in the loss", ("kl_ratio_weight",)
    if settings.entropy_coef == 0 and (settings.beta == 0 or settings.kl_placement == "reward"):
        yield "the loss has no term for such groups", ("train_groups_without_signal",)
    if settings.kl_target is None:
        yield "kl_target is not set", ("kl_horizon",)
    if settings.self_distillation is not None and settings.self_distillation.alone:
        yield "self_distillation.alone leaves out the GRPO loss", OF_GRPO_LOSS
    else:
        yield from _unused_in_grpo_loss(settings)
    if settings.overlong_buffer_tokens == 0:
        yield "overlong_buffer_tokens is 0", ("overlong_penalty",)
    if method.environments:
        yield "each environment has its own", ("max_turns",)
    elif not method.tools:
        yield "the job has no tools", ("max_turns",)
    if not has_validation and not method.retention:
        yield "there are no held-out rows", ("eval_interval", "eval_samples", "eval_temperature")


def _unused_in_grpo_loss(settings: ReinforcementHyperparameters) -> Iterator[tuple[str, tuple[str, ...]]]:
    """As `_unused`, of the options in `OF_GRPO_LOSS` and those that its advantages read."""
    loss, estimator = settings.loss_type, settings.advantage
    if loss in ("sapo", "reinforce"):
        yield f"{loss} does not clip the ratio", ("delta", "epsilon_low", "epsilon_high")
    if loss == "cispo":
        yield "cispo bounds the ratio by epsilon_high alone", ("delta", "epsilon_low")
    if loss != "sapo":
        yield f"{loss} has no soft gate", ("sapo_temperature_positive", "sapo_temperature_negative")
    if estimator not in WITH_SPREAD:
        yield f"{estimator} does not divide by a standard deviation", ("advantage_ddof",)
    if estimator == "process":
        reason = "process advantages come from the rewards of the steps, without the punishment"
        yield reason, ("overlong_buffer_tokens",)
    if settings.max_staleness:
        reason = "with max_staleness 1 the ratio of the loss contains the correction from step 2 on"
        yield reason, ("importance_correction", "importance_cap")
    elif settings.importance_correction == "none":
        yield "importance_correction is none", ("importance_cap",)
