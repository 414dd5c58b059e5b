"""What a field means: its description, else the docstring below it in the class that declares it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from itertools import pairwise

from pydantic import BaseModel


@cache
def meanings(model: type[BaseModel]) -> dict[str, str]:
    """Field → its meaning. Raises LookupError for a field that has none."""
    written: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if issubclass(cls, BaseModel) and cls is not BaseModel:
            written |= _docstrings(cls)
    found = {
        name: field.description or written.get(name) or _fallback(model, name)
        for name, field in model.model_fields.items()
    }
    if missing := [name for name, text in found.items() if not text]:
        raise LookupError(f"{model.__name__} does not say what these fields mean: {', '.join(missing)}")
    return {name: inspect.cleandoc(text) for name, text in found.items()}


def _fallback(model: type[BaseModel], name: str) -> str:
    return FALLBACK.get(f"{model.__name__}.{name}") or FALLBACK.get(name, "")


def _docstrings(cls: type[BaseModel]) -> dict[str, str]:
    """Attribute → the string that follows its declaration."""
    (declared,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(declared, ast.ClassDef)
    return {
        field.target.id: text.value.value
        for field, text in pairwise(declared.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def class_text(model: type[BaseModel]) -> str:
    """The class's own docstring, with indented lines as code."""
    return inspect.cleandoc(model.__doc__ or "")


FALLBACK = {
    "adam_beta1": "AdamW's decay rate of the first moment.",
    "adam_beta2": "AdamW's decay rate of the second moment.",
    "adam_epsilon": "AdamW's term for numerical stability.",
    "advantage": "How the rewards of a group become advantages; see the methods page.",
    "batch_size": "Prompts (reinforcement) or rows (supervised) per optimiser step; `auto`: 8.",
    "dropout": "Dropout probability on the adapter's input.",
    "early_stopping": "End the job when the held-out reward no longer rises.",
    "epsilon_low": "Clip the ratio from below at 1 - epsilon_low.",
    "grader": "The grader that scores each step.",
    "graders": "Name → grader. The names are the variables of `calculate_output`.",
    "importance_cap": "Largest weight of the importance correction.",
    "input": "Text to grade.",
    "ScoreModel.input": "Messages for the judge.",
    "RewardModel.input": "Completion that the model reads.",
    "kl_estimator": "Estimator of the KL divergence to the reference.",
    "learning_rate": "Step size of AdamW.",
    "loss_type": "Policy loss; see the methods page.",
    "lr_schedule": "Learning rate after the warm-up.",
    "max_checkpoints": "Most recent checkpoints to keep, besides the best one.",
    "max_completion_tokens": "Longest completion; a longer one is cut and counts as truncated.",
    "max_grad_norm": "Gradients with a larger norm are scaled down to it.",
    "max_steps": "Most steps of a completion; one with more is unscorable.",
    "mode": "Shape of the penalty.",
    "n_epochs": "Passes over the training file; `auto`: 1.",
    "patience": "Consecutive steps for which the rule must hold.",
    "prompt": "Prompt that the model reads before the completion.",
    "prompts_per_step": "Prompts per optimiser step; each is answered `group_size` times.",
    "rank": "Rank of the adapter.",
    "reference": "Expected value.",
    "reflection_temperature": "Temperature of the reflecting model.",
    "sampling_params": "How the judge's answer is sampled.",
    "sapo_temperature_negative": "SAPO's τ for negative advantages.",
    "sapo_temperature_positive": "SAPO's τ for positive advantages.",
    "scoring": "`fraction` of the tests that pass, or `all`: 1 only if every test passes.",
    "self_distillation": "Learn from failed attempts (SDPO).",
    "source": "Python source that defines `grade(sample, item)`.",
    "tag": "Read only the text inside the last `<tag>…</tag>`.",
    "target_modules": "Names of the layers that get an adapter.",
    "temperature": "Sampling temperature.",
    "top_k": "Accepted only with its default: truncated sampling would bias every ratio.",
    "top_p": "Accepted only with its default: truncated sampling would bias every ratio.",
    "type": "Kind of the object.",
    "unit": "Unit of the length.",
    "warmup_steps": "Steps over which the learning rate rises linearly from 0.",
    "watch": "What is measured; [guards](../read-a-run/evaluation.md#guards) lists the rules.",
    "weight_decay": "AdamW's decoupled weight decay.",
    "absolute_tolerance": "Largest absolute difference that still counts as equal.",
    "relative_tolerance": "Largest difference relative to the reference that still counts as equal.",
    "evaluation_metric": "Similarity metric.",
    "text": "Text, a template.",
    "role": "Role of the message.",
    "content": "Text of the message, a template, or a list of texts.",
    "seed": "Seed for servers that support one.",
    "SamplingParams.top_p": "Share of probability mass to sample from.",
    "reasoning_effort": "Reasoning effort, for servers that support one.",
}
"""Meanings of fields whose models have no text for them; a text in the model replaces the one here."""
