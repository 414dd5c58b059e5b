"""The canary's verdict on readings: rounding passes, another policy and a stale one do not."""

import pytest
import torch

from grpo_engine.contract.errors import PolicyMismatchError
from grpo_engine.rollout.sampler.vllm.canary import Reading, prove

BASE = tuple(-1.0 - 0.1 * token for token in range(10))


def shifted(by: float) -> tuple[float, ...]:
    return tuple(value + by for value in BASE)


def test_rounding_between_two_programs_passes() -> None:
    prove(Reading(0, BASE, shifted(1e-5)), None, torch.float32)
    prove(Reading(0, BASE, shifted(0.05)), None, torch.bfloat16)


@pytest.mark.parametrize(("dtype", "by"), [(torch.float32, 0.01), (torch.bfloat16, 0.2)])
def test_another_policy_does_not(dtype: torch.dtype, by: float) -> None:
    with pytest.raises(
        PolicyMismatchError, match="vLLM does not serve the trainer's weights as policy version 4"
    ):
        prove(Reading(4, BASE, shifted(by)), None, dtype)


def test_log_probabilities_that_are_not_numbers_do_not() -> None:
    with pytest.raises(PolicyMismatchError, match="differ by nan"):
        prove(Reading(4, BASE, (float("nan"),) * 10), None, torch.float32)


def test_an_unchanged_server_is_stale_after_any_step() -> None:
    before = Reading(3, BASE, shifted(0.03))
    now = Reading(4, shifted(1e-6), shifted(0.03))
    with pytest.raises(PolicyMismatchError, match="vLLM still serves policy version 3, not policy version 4"):
        prove(now, before, torch.bfloat16)


def test_a_server_that_moves_with_the_policy_passes() -> None:
    before = Reading(3, BASE, shifted(0.03))
    prove(Reading(4, shifted(0.01), shifted(0.035)), before, torch.bfloat16)


def test_a_policy_that_did_not_move_need_not_be_seen_to_move() -> None:
    before = Reading(3, BASE, shifted(0.03))
    prove(Reading(4, BASE, shifted(0.03)), before, torch.bfloat16)
    few = (BASE[0] + 1e-6, *BASE[1:])
    prove(Reading(4, few, shifted(0.03)), before, torch.bfloat16)
