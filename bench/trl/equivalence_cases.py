"""The cases of `bench.trl.equivalence`: options for this engine and for TRL, and the completions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grpo_engine.contract.records import FinishReason
from tests.engine.injection import Given, Groups, random_steps

STEPS, PROMPTS, GROUP_SIZE, MAX_TOKENS = 3, 4, 4, 12
END = 1
"""The tiny model's end-of-sequence token."""


@dataclass(frozen=True)
class Case:
    """One way to train, as options of both engines."""

    name: str
    ours: Mapping[str, Any]
    theirs: Mapping[str, Any]
    beta: float = 0.0
    full: bool = False
    """Whether to train all weights instead of an adapter."""
    iterations: int = 1
    given: str = "plain"
    """Additional completions for this case."""

    @property
    def learning_rate(self) -> float:
        return 2e-5 if self.full else 1e-4


FAMILY: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "grpo": ({}, {}),
    "dapo": ({"epsilon_high": 0.28}, {"epsilon_high": 0.28}),
    "dr_grpo": ({"advantage": "mean_only"}, {"scale_rewards": "none"}),
    "bnpo": ({}, {}),
    "cispo": ({"epsilon_high": 5.0}, {"epsilon_high": 5.0}),
    "sapo": ({}, {}),
    "gspo": (
        {"epsilon_low": 3e-4, "epsilon_high": 4e-4},
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
    ),
}


def of_family(loss_type: str, **more: Any) -> Case:
    ours, theirs = FAMILY[loss_type]
    return Case(loss_type, {"loss_type": loss_type, **ours}, {"loss_type": loss_type, **theirs}, **more)


def extended(loss_type: str, name: str, ours: dict[str, Any], theirs: dict[str, Any], **more: Any) -> Case:
    """A variant with one more option."""
    case = of_family(loss_type, **more)
    name = f"{loss_type}, {name}"
    return replace(case, name=name, ours={**case.ours, **ours}, theirs={**case.theirs, **theirs})


TIGHT = {"epsilon_low": 1e-4, "epsilon_high": 1e-4}
"""Clip range so narrow that the second iteration is clipped."""
NARROW = {"epsilon": 1e-4, "epsilon_high": 1e-4}
"""The same options under TRL's names."""
MASKED = {"mask_truncated_completions": True}
UNWEIGHTED = {"kl_ratio_weight": False}, {"use_bias_correction_kl": False}

FAMILY_CASES = tuple(of_family(loss_type, beta=beta) for loss_type in FAMILY for beta in (0.0, 0.1))
FULL_CASES = tuple(of_family(loss_type, beta=0.1, full=True) for loss_type in ("grpo", "dapo"))
OPTION_CASES = (
    extended("grpo", "clipped in a second iteration", TIGHT, NARROW, iterations=2),
    extended("gspo", "a second iteration", {}, {}, iterations=2, beta=0.1),
    extended("sapo", "a second iteration", {}, {}, iterations=2),
    extended("dapo", "two-sided clip", {"delta": 1.0001, **TIGHT}, {"delta": 1.0001, **NARROW}, iterations=2),
    extended("dapo", "KL without its ratio", *UNWEIGHTED, iterations=2, beta=0.1),
    extended("dapo", "top 20 % entropy", {"top_entropy_quantile": 0.2}, {"top_entropy_quantile": 0.2}),
    extended("dapo", "entropy bonus", {"entropy_coef": 0.01}, {"entropy_coef": 0.01}),
    extended("grpo", "spread of the batch", {"advantage": "batch_std"}, {"scale_rewards": "batch"}),
    extended("grpo", "temperature 0.7", {"temperature": 0.7}, {"temperature": 0.7}),
    extended("grpo", "truncated masked", MASKED, MASKED, beta=0.1, given="truncated"),
    extended("dapo", "truncated masked", MASKED, MASKED, given="truncated"),
    extended("grpo", "tool tokens", {}, {}, beta=0.1, given="tools"),
    extended("dapo", "tool tokens", {}, {}, given="tools"),
    extended("dapo", "an unscorable completion", {}, {}, given="unscorable"),
)
CASES = (*FAMILY_CASES, *FULL_CASES, *OPTION_CASES)


def given_steps(case: Case) -> list[Groups]:
    """Groups of random completions that end, with the case's additions; the second has equal rewards."""
    plain = random_steps(STEPS, PROMPTS, GROUP_SIZE, longest=MAX_TOKENS - 1)
    return [
        [(prompt, _given_group(case, group, place)) for place, (prompt, group) in enumerate(step)]
        for step in plain
    ]


def _given_group(case: Case, group: Sequence[Given], place: int) -> list[Given]:
    if place == 1:
        # the float32 mean of 0.5 is exact, so that TRL's advantage is 0
        group = [replace(given, reward=0.5) for given in group]
    return [_given(case, *each) for each in enumerate(group)]


def _given(case: Case, place: int, given: Given) -> Given:
    if case.given == "truncated" and place == 2:
        return replace(given, finish_reason=FinishReason.LENGTH)
    if case.given == "unscorable" and place == 0:
        given = replace(given, reward=None)
    token_ids = (*given.token_ids, END)
    if case.given == "tools" and len(token_ids) > 2:
        return replace(given, token_ids=token_ids, sampled=tuple(t % 3 != 1 for t in range(len(token_ids))))
    return replace(given, token_ids=token_ids)
