"""Check the loss against vectors measured with another engine.

    python tests/engine/objective/check_vectors.py FILE

The file holds `inputs` (log-probabilities `new`, `old`, `ref`, `samp`, masks, entropies, one advantage a
completion) and `cases` with options, loss and gradient. Prints `name loss_error gradient_error` for every
case whose options exist here and exits 1 if any error exceeds 1e-6; a case that needs an option we do not
have is named so. Options may bear the file's short names or TRL's long ones.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grpo_engine.config.reinforcement import ReinforcementHyperparameters
from grpo_engine.objective import loss as losses
from grpo_engine.objective.loss import importance_weights, kl_losses, ratios, token_weights

TOLERANCE = 1e-6
LOSSES = {**losses.LOSSES, "luspo": losses.LOSSES["gspo"]}
"""LUSPO, which no job can select, is GSPO's loss with other weights; its vector checks the sequence ratio."""

NAMES = {
    "loss_type": ("loss_type",),
    "level": ("level", "importance_sampling_level"),
    "epsilon": ("eps", "epsilon"),
    "epsilon_low": ("eps_low", "epsilon_low"),
    "epsilon_high": ("eps_high", "epsilon_high"),
    "delta": ("delta",),
    "beta": ("beta",),
    "kl_ratio_weight": ("bias_kl", "kl_ratio_weight", "use_bias_correction_kl"),
    "kl_estimator": ("kl", "kl_estimator"),
    "kl_placement": ("placement", "kl_placement"),
    "use_old": ("use_old",),
    "tool": ("tool", "tool_mask"),
    "accumulation": ("ga", "gradient_accumulation_steps"),
    "per_generation": ("spg", "steps_per_generation"),
    "quantile": ("quantile", "top_entropy_quantile"),
    "entropy_coef": ("entropy_coef", "ent_coef"),
    "sapo_temperature_positive": ("sapo_temperature_positive", "sapo_temperature_pos", "tau_pos", "temp_pos"),
    "sapo_temperature_negative": ("sapo_temperature_negative", "sapo_temperature_neg", "tau_neg", "temp_neg"),
    "max_completion_tokens": ("max_completion_tokens", "max_completion_length", "max_len"),
    "correction": ("importance_correction", "is_mode", "vllm_importance_sampling_mode"),
    "cap": ("importance_cap", "is_cap", "vllm_importance_sampling_clip_max"),
}
"""Our name of an option → the names it may have in a file."""
CANONICAL = {name: ours for ours, names in NAMES.items() for name in names}

DEFAULTS: Mapping[str, Any] = {
    "epsilon": 0.2,
    "delta": None,
    "beta": 0.0,
    "kl_ratio_weight": True,
    "kl_estimator": "k3",
    "kl_placement": "loss",
    "use_old": True,
    "tool": False,
    "accumulation": 1,
    "per_generation": 1,
    "quantile": 1.0,
    "entropy_coef": 0.0,
    "sapo_temperature_positive": 1.0,
    "sapo_temperature_negative": 1.05,
    # divisor of the measured `dr_grpo`
    "max_completion_tokens": 16,
    "correction": "none",
    "cap": 3.0,
}
TOKEN_LEVEL = ("dapo", "cispo", "reinforce")
"""Their normaliser spans the generation batch; the others are divided by the accumulation steps."""


def canonical(options: Mapping[str, Any]) -> dict[str, Any]:
    """Every option under our name, defaults filled in as the measured engine has them."""
    given = {CANONICAL[name]: value for name, value in options.items() if value is not None}
    found = {**DEFAULTS, **given}
    found.setdefault("level", "sequence" if found["loss_type"] == "gspo" else "token")
    found.setdefault("epsilon_low", found["epsilon"])
    found.setdefault("epsilon_high", found["epsilon"])
    return found


def supported(options: Mapping[str, Any]) -> bool:
    if not set(options) <= set(CANONICAL) or options.get("loss_type") not in LOSSES:
        return False
    found = canonical(options)
    return found["level"] in ("token", "sequence") and found["kl_placement"] in ("loss", "loss_sequence")


@dataclass(frozen=True)
class Tokens:
    """The trained tokens of the file's completions, flat [N]; float64."""

    mask: Tensor
    """[B, T] bool."""
    new: Tensor
    old: Tensor
    reference: Tensor
    advantages: Tensor
    sequences: Tensor
    """[N] completion of each token."""


def flattened(inputs: Mapping[str, Any], new: Tensor, options: Mapping[str, Any]) -> Tokens:
    mask = torch.tensor(inputs["mask"]).bool()
    if options["tool"]:
        mask &= torch.tensor(inputs["tool"]).bool()

    def flat(name: str) -> Tensor:
        return torch.tensor(inputs[name], dtype=torch.float64)[mask]

    advantages = torch.tensor(inputs["adv"], dtype=torch.float64)
    if advantages.dim() == 1:
        advantages = advantages[:, None].expand_as(new)
    sequences = torch.arange(len(new))[:, None].expand_as(new)[mask]
    old = flat("old") if options["use_old"] else new[mask].detach()
    reference = flat("ref") if options["beta"] else old
    return Tokens(mask, new[mask], old, reference, advantages[mask], sequences)


def settings_of(options: Mapping[str, Any]) -> ReinforcementHyperparameters:
    names = options.keys() & ReinforcementHyperparameters.model_fields.keys()
    return ReinforcementHyperparameters.model_construct(**{name: options[name] for name in names})


def loss_and_gradient(inputs: Mapping[str, Any], case: Mapping[str, Any]) -> tuple[float, Tensor]:
    """Loss and its gradient with respect to `new` [B, T], in float64."""
    options = canonical(case)
    new = torch.tensor(inputs["new"], dtype=torch.float64, requires_grad=True)
    tokens, settings = flattened(inputs, new, options), settings_of(options)
    ratio_of = settings.model_copy(update={"loss_type": "gspo" if options["level"] == "sequence" else "grpo"})
    ratio_N = ratios(tokens.new, tokens.old, tokens.sequences, ratio_of.loss_type)
    losses_N = LOSSES[settings.loss_type](ratio_N, tokens.advantages, tokens.new, settings)

    chosen_N = kept_tokens(inputs, tokens, options["quantile"])
    weights_N, kl_weights_N = weights(tokens, options)
    loss = (losses_N * weights_N * chosen_N * corrections(inputs, tokens, options)).sum()
    if settings.beta:
        kl_N = kl_losses(tokens.new, tokens.old, tokens.reference, tokens.sequences, ratio_of)
        loss = loss + (settings.beta * kl_N * kl_weights_N).sum()
    loss = loss / accumulation(options)
    if options["entropy_coef"]:
        mean = (column(inputs, "ent", tokens) * chosen_N).sum() / chosen_N.sum().clamp(min=1)
        loss = loss - options["entropy_coef"] * mean / options["accumulation"]
    loss.backward()
    assert new.grad is not None
    return float(loss.detach()), new.grad


def column(inputs: Mapping[str, Any], name: str, tokens: Tokens) -> Tensor:
    return torch.tensor(inputs[name], dtype=torch.float64)[tokens.mask]


def kept_tokens(inputs: Mapping[str, Any], tokens: Tokens, share: float) -> Tensor:
    """[N] 1 if the entropy is among the highest; the threshold is in float32, as measured."""
    if share >= 1:
        return torch.ones_like(tokens.advantages)
    entropies_N = column(inputs, "ent", tokens)
    return (entropies_N >= torch.quantile(entropies_N.float(), 1 - share)).double()


def weights(tokens: Tokens, options: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Share of each token in the policy loss and in the KL term [N]."""
    lengths = tokens.mask.sum(1).tolist()
    if options["loss_type"] == "luspo":
        shares = [1 / len(lengths)] * len(lengths)
    else:
        shares = token_weights(options["loss_type"], lengths, options["max_completion_tokens"])
    weights_N = torch.tensor(shares, dtype=torch.float64)[tokens.sequences]
    if options["kl_placement"] == "loss_sequence":
        return weights_N, torch.full_like(weights_N, 1 / len(lengths))
    return weights_N, weights_N


def corrections(inputs: Mapping[str, Any], tokens: Tokens, options: Mapping[str, Any]) -> Tensor:
    """Importance weights [N] against the sampler's own log-probabilities `samp`."""
    if options["correction"] == "none":
        return torch.ones_like(tokens.old)
    sampled_N = column(inputs, "samp", tokens)
    return importance_weights(tokens.old, sampled_N, tokens.sequences, options["correction"], options["cap"])


def accumulation(options: Mapping[str, Any]) -> float:
    """Divisor of a micro-batch's loss in the measured engine."""
    steps = float(options["accumulation"])
    return steps / options["per_generation"] if options["loss_type"] in TOKEN_LEVEL else steps


def errors(vectors: Mapping[str, Any]) -> Iterator[tuple[str, float, float]]:
    """Name, loss error and largest gradient error of every supported case."""
    for name, case in vectors["cases"].items():
        if supported(case["kw"]):
            loss, gradient = loss_and_gradient(case.get("inputs", vectors.get("inputs")), case["kw"])
            expected = torch.tensor(case["grad"], dtype=torch.float64)
            yield name, abs(loss - case["loss"]), float((gradient - expected).abs().max())


def main(arguments: list[str]) -> int:
    vectors = json.loads(Path(arguments[0]).read_text())
    wrong = 0
    for name, loss_error, gradient_error in errors(vectors):
        print(f"{name} {loss_error:.3g} {gradient_error:.3g}")
        wrong += not (loss_error <= TOLERANCE and gradient_error <= TOLERANCE)
    for name, case in vectors["cases"].items():
        if not supported(case["kw"]):
            print(f"{name}: not checked, it needs an option that does not exist here", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
