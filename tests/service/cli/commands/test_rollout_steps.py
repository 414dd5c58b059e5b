"""`grpo rollouts` with steps that do not exist."""

import pytest

from service.platform.db import Database
from service.settings import Settings
from tests.service.cli.command import Grpo
from tests.service.rollouts.rollout_samples import add_graded_job, add_group, scored


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


@pytest.fixture
def job_id(settings: Settings, database: Database) -> str:
    """A job with rollouts of steps 1, 2, 3 and 7, and of an evaluation at step 5."""
    job_id = add_graded_job(settings, database)
    for step in (1, 2, 3, 7):
        add_group(database, job_id, step, 0, [scored("4", 1.0, 0.0)])
    add_group(database, job_id, 5, 0, [scored("4", 1.0, 0.0)], split="validation")
    return job_id


def as_tenant_a(grpo: Grpo, *arguments: str) -> tuple[int, str, str]:
    done = grpo.run("rollouts", *arguments)
    return done.returncode, done.stdout, done.stderr


def test_a_step_without_rollouts_is_an_error_that_lists_the_steps(grpo: Grpo, job_id: str) -> None:
    code, shown, error = as_tenant_a(grpo, job_id, "--step", "9999")
    assert (code, shown) == (1, "")
    assert error.startswith("Error: no rollouts at step 9999 [code=no_rollouts param=step] Hint: ")
    assert "train: 1–3, 7; validation: 5" in error


def test_a_step_of_another_split_is_absent(grpo: Grpo, job_id: str) -> None:
    code, _, error = as_tenant_a(grpo, job_id, "--step", "5", "--split", "train")
    assert (code, "no rollouts of train at step 5" in error) == (1, True)
    assert as_tenant_a(grpo, job_id, "--step", "5")[0] == 0


def test_a_range_needs_one_step_with_rollouts(grpo: Grpo, job_id: str) -> None:
    assert as_tenant_a(grpo, job_id, "--from-step", "6")[0] == 0
    code, _, error = as_tenant_a(grpo, job_id, "--from-step", "8")
    assert (code, "no rollouts at steps 8 to the last" in error) == (1, True)
    assert as_tenant_a(grpo, job_id, "--from-step", "8", "--export", "jsonl")[:2] == (1, "")


def test_a_job_that_has_not_sampled_yet_says_so(grpo: Grpo, settings: Settings, database: Database) -> None:
    code, _, error = as_tenant_a(grpo, add_graded_job(settings, database), "--step", "1")
    assert (code, "the job has not sampled anything yet" in error) == (1, True)


def test_a_filter_without_a_match_is_an_empty_list(grpo: Grpo, job_id: str) -> None:
    assert as_tenant_a(grpo, job_id, "--filter", "truncated", "--json") == (0, "[]\n", "")
