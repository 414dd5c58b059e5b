"""The real GRPOTrainer of TRL 1.16 and this engine make the same of the same completions and rewards.

`make equivalence` runs the comparisons with the live trainer and writes `bench/equivalence.md`; `make test`
compares with recorded vectors (tests/engine/objective).
"""

import itertools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.trl.equivalence import TOLERANCES, compared, table, within
from bench.trl.equivalence_cases import CASES, Case
from tests.engine.objective.check_vectors import canonical, loss_and_gradient


@pytest.mark.live_trl
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.name}-{c.beta:g}-{'all' if c.full else 'lora'}")
def test_three_steps_are_those_of_trl(
    case: Case, model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    errors = compared(case, model_folder("qwen3"), tmp_path)
    assert {name: errors[name] for name, limit in TOLERANCES.items() if errors[name] > limit} == {}
    assert errors["moved"] > 50 * errors["parameters"]


def test_an_error_above_its_tolerance_is_outside() -> None:
    exact = dict.fromkeys(TOLERANCES, 0.0)
    assert within(exact)
    for name in TOLERANCES:
        assert not within({**exact, name: 2e-5})
        assert not within({**exact, name: math.nan})


def test_the_table_has_a_row_for_every_case() -> None:
    errors = {**dict.fromkeys(TOLERANCES, 1e-9), "moved": 1e-3}
    lines = list(table([(case, errors) for case in CASES]))
    assert sum("1.0e-09 | 1.0e-09 | 1.0e-09 | 1.0e-09 | 1.0e-03" in line for line in lines) == len(CASES)


def random_inputs(seed: int, rows: int = 5, tokens: int = 7) -> dict[str, Any]:
    """Inputs of a vector file: log-probabilities that lie apart, masks of unequal length."""
    generator = torch.Generator().manual_seed(seed)

    def normal() -> Tensor:
        return torch.randn(rows, tokens, generator=generator, dtype=torch.float64)

    old = -normal().abs()
    lengths = torch.randint(1, tokens + 1, (rows, 1), generator=generator)
    tool = (torch.rand(rows, tokens, generator=generator) > 0.3).long()
    tool[:, 0] = 1
    return {
        "new": (old + 0.4 * normal()).tolist(),
        "old": old.tolist(),
        "ref": (old + 0.3 * normal()).tolist(),
        "mask": (torch.arange(tokens) < lengths).long().tolist(),
        "tool": tool.tolist(),
        "adv": torch.randn(rows, generator=generator, dtype=torch.float64).tolist(),
        "ent": normal().abs().tolist(),
    }


def of_trl(inputs: Mapping[str, Any], case: Mapping[str, Any]) -> tuple[float, Tensor]:
    """Loss and gradient by TRL's own `_compute_loss`, handed log-probabilities instead of a model."""
    from accelerate import Accelerator
    from trl import GRPOTrainer

    options = canonical(case)
    new = torch.tensor(inputs["new"], dtype=torch.float64, requires_grad=True)
    given = {name: torch.tensor(inputs[name]) for name in ("mask", "tool")}
    entropies = torch.tensor(inputs["ent"], dtype=torch.float64)
    trainer = object.__new__(GRPOTrainer)
    trainer.__dict__.update(
        loss_type="grpo" if options["loss_type"] == "gspo" else options["loss_type"],
        importance_sampling_level=options["level"],
        beta=options["beta"],
        epsilon_low=options["epsilon_low"],
        epsilon_high=options["epsilon_high"],
        top_entropy_quantile=options["quantile"],
        entropy_coef=options["entropy_coef"],
        _entropy_bonus_enabled=options["entropy_coef"] > 0,
        use_adaptive_entropy=False,
        off_policy_mask_threshold=None,
        use_vllm=False,
        aux_loss_enabled=False,
        max_completion_length=options["max_completion_tokens"],
        current_gradient_accumulation_steps=options["accumulation"],
        accelerator=Accelerator(cpu=True),
        model=SimpleNamespace(training=True),
        _metrics={"train": _Anything()},
        args=SimpleNamespace(
            delta=options["delta"],
            use_bias_correction_kl=options["kl_ratio_weight"],
            sapo_temperature_pos=options["sapo_temperature_positive"],
            sapo_temperature_neg=options["sapo_temperature_negative"],
            steps_per_generation=options["per_generation"],
        ),
        _get_per_token_logps_and_entropies=lambda *a, **k: (new, entropies, None),
    )
    batch = {
        "prompt_ids": torch.zeros(len(new), 1),
        "prompt_mask": torch.ones(len(new), 1),
        "completion_ids": torch.zeros(new.shape),
        "completion_mask": given["mask"],
        "advantages": torch.tensor(inputs["adv"], dtype=torch.float64),
        "ref_per_token_logps": torch.tensor(inputs["ref"], dtype=torch.float64),
        "num_items_in_batch": (given["mask"] * (given["tool"] if options["tool"] else 1)).sum(),
    }
    if options["tool"]:
        batch["tool_mask"] = given["tool"]
    if options["use_old"]:
        batch["old_per_token_logps"] = torch.tensor(inputs["old"], dtype=torch.float64)
    loss = trainer._compute_loss(None, batch)
    loss.backward()
    assert new.grad is not None
    return float(loss.detach()), new.grad


class _Anything(dict[str, list[float]]):
    def __missing__(self, name: str) -> list[float]:
        return self.setdefault(name, [])


LOSSES = ("grpo", "dapo", "dr_grpo", "bnpo", "gspo", "cispo", "sapo", "luspo")
OPTIONS: dict[str, dict[str, Any]] = {
    "nothing more": {},
    "beta": {"beta": 0.04},
    "plain KL": {"beta": 0.3, "bias_kl": False},
    "clip higher": {"eps_low": 0.1, "eps_high": 0.28},
    "two-sided clip": {"delta": 1.3},
    "on-policy": {"use_old": False, "beta": 0.1},
    "tool tokens": {"tool": True, "beta": 0.04},
    "top entropy": {"quantile": 0.3, "beta": 0.04},
    "entropy bonus": {"quantile": 0.5, "entropy_coef": 0.02, "ga": 2, "spg": 2},
    "accumulated": {"ga": 4, "spg": 8, "beta": 0.04},
    "sequence level": {"level": "sequence", "beta": 0.04},
    "sapo temperatures": {"sapo_temperature_pos": 1.3, "sapo_temperature_neg": 0.9},
}


@pytest.mark.live_trl
@pytest.mark.parametrize("loss_type", LOSSES)
def test_the_loss_of_given_tensors_is_trls_in_value_and_gradient(loss_type: str) -> None:
    for (name, options), seed in itertools.product(OPTIONS.items(), range(4)):
        inputs, case = random_inputs(seed), {"loss_type": loss_type, **options}
        loss, gradient = loss_and_gradient(inputs, case)
        expected, their_gradient = of_trl(inputs, case)
        assert loss == pytest.approx(expected, abs=1e-12), (name, seed)
        assert float((gradient - their_gradient).abs().max()) < 1e-12, (name, seed)
