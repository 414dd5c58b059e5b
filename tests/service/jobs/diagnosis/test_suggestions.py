"""Suggested values at the limits of a request."""

import pytest

from service.jobs.diagnosis.rules import diagnose
from tests.service.job_samples import GRADER, METHOD
from tests.service.jobs.diagnosis.failed_runs import failed


@pytest.mark.parametrize("code", ["out_of_memory", "poisoned"])
@pytest.mark.parametrize("kind", ["reinforcement", "training_free"])
def test_completions_of_one_token_are_not_made_shorter(kind: str, code: str) -> None:
    settings = {"grader": GRADER, "hyperparameters": {"max_completion_tokens": 1}}
    method = METHOD.dump_python(METHOD.validate_python({"type": kind, kind: settings}), mode="json")
    finding = diagnose(failed(code, message="no memory left", method=method)).findings[0]
    assert (finding.field, finding.patch) == (f"method.{kind}.hyperparameters", None)


def test_a_poisoned_job_is_made_smaller_only_if_its_failure_names_memory() -> None:
    named = failed("poisoned", message="Usually the machine or its container had no memory left.")
    assert diagnose(named).findings[0].field == "method.reinforcement.hyperparameters.max_completion_tokens"
    other = failed("poisoned", message="The last: an object is missing in the storage.")
    assert diagnose(other).findings[0].patch == {}


def test_the_number_of_attempts_of_a_poisoned_job_is_left_to_its_failure() -> None:
    finding = diagnose(failed("poisoned", message="5 attempts in a row ended.")).findings[0]
    assert finding.cause == "Too many attempts in a row ended without a new checkpoint."
    assert finding.evidence[0].endswith("5 attempts in a row ended.")
