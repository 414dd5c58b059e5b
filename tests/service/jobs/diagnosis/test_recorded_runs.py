"""The diagnosis of real runs of a tiny model: what it says at the end, and that it does not waver before."""

from functools import cache
from itertools import pairwise

import pytest

from service.jobs.diagnosis.findings import Diagnosis
from service.jobs.diagnosis.rules import MAIN, diagnose
from tests.service.jobs.diagnosis.recorded_runs import FOLDER, RecordedRun

NAMES = sorted(path.stem for path in FOLDER.glob("*.jsonl"))
STRIDE = 5
MAIN_CODES = {
    *("length_hacking", "not_held_out", "reward_fell", "learning_rate_too_high", "kl_explosion"),
    *("already_solved", "truncation", "entropy_collapse", "few_signals", "reward_flat"),
}
OPEN_CODES = {"more_rows", "longer_completions"}
"""Information that is a run's verdict: the question that its data leave open."""


@cache
def recorded(name: str) -> RecordedRun:
    return RecordedRun.read(FOLDER / f"{name}.jsonl")


@cache
def walked(name: str) -> list[Diagnosis]:
    """The diagnoses after every fifth step, and at the end."""
    run = recorded(name)
    return [*(diagnose(run.at(step)) for step in range(STRIDE, run.last_step, STRIDE)), diagnose(run.at())]


def test_there_are_forty_runs_of_seventeen_classes() -> None:
    assert len(NAMES) >= 40
    assert len({recorded(name).header["class"] for name in NAMES}) == 17


@pytest.mark.parametrize("name", NAMES)
def test_a_run_has_the_verdict_of_its_class(name: str) -> None:
    header, found = recorded(name).header, walked(name)[-1]
    decisive = [f"{one.severity} {one.code}" for one in found.findings]
    decisive = [one for one in decisive if not one.startswith("info") or one.split()[1] in OPEN_CODES]
    assert decisive == ([header["expected"]] if header["expected"] else [])
    assert found.summary.startswith(header["summary"])


@pytest.mark.parametrize("name", NAMES)
def test_a_finding_that_disappears_does_not_come_back(name: str) -> None:
    present = [{one.code for one in found.findings} for found in walked(name)]
    present = [{code for code in codes if not code.startswith("guard_")} for codes in present]
    for code in set.union(*present):
        appearances = sum(
            code in after and code not in before for before, after in pairwise([set(), *present])
        )
        assert appearances == 1, code


@pytest.mark.parametrize("name", NAMES)
def test_no_two_causes_are_named_at_once(name: str) -> None:
    for found in walked(name):
        codes = [one.code for one in found.findings]
        assert len(MAIN_CODES.intersection(codes)) <= 1, codes
        assert len({one.field for one in found.findings if one.patch}) == sum(
            one.patch is not None for one in found.findings
        )


@pytest.mark.parametrize("name", NAMES)
def test_a_cause_shows_the_two_numbers_that_it_compares(name: str) -> None:
    for found in walked(name):
        for one in found.findings:
            assert one.code not in MAIN_CODES or len(one.compared) == 2, one


def test_the_same_run_always_gets_the_same_diagnosis() -> None:
    for name in NAMES[:3]:
        assert diagnose(RecordedRun.read(FOLDER / f"{name}.jsonl").at()) == walked(name)[-1]


def test_every_rule_about_a_main_cause_is_listed() -> None:
    # with `failure`, and two rules each about the learning rate and few signals
    assert len(MAIN) == 3 + len(MAIN_CODES)
