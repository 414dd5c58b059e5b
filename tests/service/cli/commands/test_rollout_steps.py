"""`grpo rollouts` with steps that do not exist, and with completions of several turns."""

from pathlib import Path

import pytest

from service.jobs.model.states import JobState
from service.platform.db import Database
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.cli.command import Grpo
from tests.service.job_samples import METHOD, add_job
from tests.service.rollouts.rollout_samples import (
    EPISODES,
    TOOL_TURNS,
    add_graded_job,
    add_group,
    as_message,
    completion,
    scored,
)

pytestmark = on_sqlite


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


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (JobState.RUNNING, "has not sampled anything yet"),
        (JobState.FAILED, "ended before a step was complete"),
    ],
)
def test_a_job_without_rollouts_says_why(
    grpo: Grpo, database: Database, state: JobState, reason: str
) -> None:
    job_id = add_job(database, state)
    for options in (["--step", "1"], [], ["--export", "sft"]):
        code, shown, error = as_tenant_a(grpo, job_id, *options)
        assert (code, shown, f"the job {reason}" in error) == (1, "", True), error


def test_an_export_to_a_folder_names_the_path_that_was_given(grpo: Grpo, job_id: str, tmp_path: Path) -> None:
    for output in (tmp_path, tmp_path / "absent" / "rollouts.jsonl"):
        code, shown, error = as_tenant_a(grpo, job_id, "--export", "jsonl", "-o", str(output))
        assert (code, shown) == (1, "")
        assert error.startswith(f"Error: cannot write to {output} [param=output] Hint: ")
    assert not [*tmp_path.glob("*rollouts*")]


def test_rescoring_a_job_without_rollouts_says_why(grpo: Grpo, database: Database, tmp_path: Path) -> None:
    grader = tmp_path / "grader.json"
    grader.write_text('{"type": "format", "name": "shape", "tags": ["answer"]}')
    done = grpo.run("rescore", add_job(database, JobState.RUNNING), str(grader))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "Error: no rollouts of train [code=no_rollouts] Hint: the job has not sampled "
    )


def test_a_supervised_job_says_that_it_samples_nothing(grpo: Grpo, database: Database) -> None:
    method = METHOD.validate_python({"type": "supervised", "supervised": {}})
    stored = METHOD.dump_python(method, mode="json")
    code, shown, error = as_tenant_a(grpo, add_job(database, JobState.SUCCEEDED, method=stored))
    assert (code, shown) == (1, "")
    assert error.startswith("Error: no rollouts [code=no_rollouts] Hint: a supervised job samples no ")


def test_a_filter_without_a_match_is_an_empty_list(grpo: Grpo, job_id: str) -> None:
    assert as_tenant_a(grpo, job_id, "--filter", "truncated", "--json") == (0, "[]\n", "")


CONVERSATIONS = """step 1 train, row 1
user: Guess the word. It has five letters.

completion 1: reward 1, advantage 0, 3 tokens, stop, environment words, seed 7
  1  model        crane
     environment  two are right
     reward       0.2
  2  model        <b>
     environment  Error
     reward       none
  3  model        crate
     environment  solved
     reward       1, done

completion 2: reward 0.2, advantage 0, 3 tokens, length, environment words, seed 7
  1  model             I look.
     tool find failed  Error: no answer
     reward            none
  2  model             slate
     environment       two are right
     reward            0.2
  3  model             sla

completion 3: reward –, advantage 0, 3 tokens, session failed, environment words, seed 7
  1  model        slime
     environment  one is right
     reward       0.1
  2  model        crown
  session failed, not scored: no answer within 30 s

completion 4: reward 0.5, advantage 0, 3 tokens, stop, environment words, seed 7
  1  model        I look.
     environment  7
  2  model        It is 7.
"""
TOOLS = """step 2 train, row 1
prompt: <user> 0

completion 1: reward 1, advantage 0, 3 tokens, stop
  1  model             I add.
     tool add          7
  2  model             I search.
     tool find failed  Error: no answer
  3  model             It is
                       7.
"""


def test_completions_of_several_turns_are_printed_as_conversations(
    grpo: Grpo, settings: Settings, database: Database
) -> None:
    job_id = add_graded_job(settings, database)
    add_group(database, job_id, 1, 0, EPISODES, **as_message("Guess the word.\n\nIt has five letters."))
    turns = [*TOOL_TURNS[:2], {"text": "It is\n7.", "answers": []}]
    add_group(database, job_id, 2, 0, [completion(1.0, turns=3, tool_turns=turns)])
    assert as_tenant_a(grpo, job_id, "--step", "1") == (0, CONVERSATIONS, "")
    assert as_tenant_a(grpo, job_id, "--step", "2") == (0, TOOLS, "")
