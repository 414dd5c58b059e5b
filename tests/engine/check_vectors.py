"""Check the loss against vectors measured with another engine.

    python tests/engine/check_vectors.py FILE

The file holds `inputs` (log-probabilities `new`, `old`, `ref`, masks, one advantage a completion) and
`cases` with options, loss and gradient. Prints `name loss_error gradient_error` for every case whose options
exist here and exits 1 if any error exceeds 1e-6; a case that needs an option we do not have is named so.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grpo_engine.loss import token_losses, token_weights

TOLERANCE = 1e-6
LOSSES = ("grpo", "dapo", "dr_grpo")
KNOWN = {"loss_type", "beta", "eps_low", "eps_high", "delta", "bias_kl", "use_old", "tool", "ga", "spg"}
MAX_COMPLETION_TOKENS = 16
"""What the measured `dr_grpo` divides by."""


def supported(options: Mapping[str, Any]) -> bool:
    return options.get("loss_type") in LOSSES and set(options) <= KNOWN


def loss_and_gradient(inputs: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[float, Tensor]:
    """Loss and its gradient with respect to `new` [B, T], in float64."""
    new = torch.tensor(inputs["new"], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor(inputs["mask"]).bool()
    if options.get("tool"):
        mask &= torch.tensor(inputs["tool"]).bool()
    advantages = torch.tensor(inputs["adv"], dtype=torch.float64)[:, None].expand_as(new)[mask]
    weights = token_weights(options["loss_type"], mask.sum(1).tolist(), MAX_COMPLETION_TOKENS)
    weights_N = torch.tensor(weights, dtype=torch.float64)[:, None].expand_as(new)[mask]
    logprobs = new[mask]
    old = torch.tensor(inputs["old"], dtype=torch.float64)[mask]
    beta = options.get("beta", 0.0)
    losses = token_losses(
        logprobs,
        old if options.get("use_old", True) else logprobs.detach(),
        advantages,
        torch.tensor(inputs["ref"], dtype=torch.float64)[mask] if beta else None,
        beta=beta,
        epsilon_low=options.get("eps_low", 0.2),
        epsilon_high=options.get("eps_high", 0.2),
        delta=options.get("delta"),
        kl_ratio_weight=options.get("bias_kl", True),
    )
    loss = (losses * weights_N).sum() / _accumulation(options)
    loss.backward()
    assert new.grad is not None
    return float(loss.detach()), new.grad


def _accumulation(options: Mapping[str, Any]) -> int:
    """A per-sequence loss is divided by the accumulation steps; the token-level ones already are."""
    return int(options.get("ga", 1)) if options["loss_type"] in ("grpo", "dr_grpo") else 1


def errors(vectors: Mapping[str, Any]) -> Iterator[tuple[str, float, float]]:
    """Name, loss error and largest gradient error of every supported case."""
    for name, case in vectors["cases"].items():
        if supported(case["kw"]):
            loss, gradient = loss_and_gradient(vectors["inputs"], case["kw"])
            expected = torch.tensor(case["grad"], dtype=torch.float64)
            yield name, abs(loss - case["loss"]), float((gradient - expected).abs().max())


def main(arguments: list[str]) -> int:
    vectors = json.loads(Path(arguments[0]).read_text())
    worst = 0.0
    for name, loss_error, gradient_error in errors(vectors):
        print(f"{name} {loss_error:.3g} {gradient_error:.3g}")
        worst = max(worst, loss_error, gradient_error)
    for name, case in vectors["cases"].items():
        if not supported(case["kw"]):
            print(f"{name}: not checked, it needs an option that does not exist here", file=sys.stderr)
    return 1 if worst > TOLERANCE else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
