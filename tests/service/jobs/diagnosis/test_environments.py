"""Findings about environments: failed sessions of short runs, missing rewards."""

from tests.service.job_samples import expanded
from tests.service.jobs.diagnosis.failed_runs import failed
from tests.service.jobs.diagnosis.runs import the


def test_missing_rewards_are_a_question_to_the_environments() -> None:
    method = expanded()
    method["reinforcement"]["grader"] = {"type": "environment"}
    finding = the(failed("grader_contract", method=method), "grader_contract")
    assert finding.field == "method.reinforcement.environments"
