"""docs/sinks.md and docs/diagnosis.md: their commands as they stand, against `grpo up`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.tiny_model import make_model
from service.jobs.schemas import JobCreate
from tests.servers import wait_until
from tests.service.embedded import Up, grpo_job, grpo_up, write_rows
from worker.sinks.tensorboard_files import newest_step

DOCS = Path(__file__).parents[2] / "docs"


def blocks(guide: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / guide).read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    home = tmp_path_factory.mktemp("guides") / "home"
    make_model(home / "models" / "tiny", hidden=32, layers=1)
    write_rows(home / "rows.jsonl")
    job = {**grpo_job("rows.jsonl"), "integrations": [{"type": "tensorboard"}]}
    (home / "job.json").write_text(json.dumps(job))
    with grpo_up(home) as running:
        yield running


@pytest.fixture(scope="module")
def job_id(up: Up) -> str:
    """Of the job that docs/sinks.md submits."""
    (submit,) = blocks("sinks.md", "sh")
    return re.findall(r"^ftjob-\w+", shell(up, submit), re.MULTILINE)[0]


def shell(up: Up, script: str, **variables: str) -> str:
    """What the commands print, in the service's home."""
    key = Path(up.ready["key_file"]).read_text().strip()
    path = f"{Path(sys.executable).parent}:{up.environment['PATH']}"
    env = {**up.environment, "PATH": path, "GRPO_URL": up.url, "GRPO_API_KEY": key, **variables}
    done = subprocess.run(
        ["bash", "-euc", script],
        env=env,
        cwd=up.home,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_integrations_of_the_guide_are_what_a_job_may_say() -> None:
    (example,) = blocks("sinks.md", "json")
    body = JobCreate.model_validate({**grpo_job("file-1"), **json.loads(example)})
    assert [one.type for one in body.integrations or ()] == ["wandb", "mlflow", "tensorboard"]


def test_a_submitted_job_s_steps_are_in_tensorboard_s_folder(up: Up, job_id: str) -> None:
    folder = up.home / "tensorboard" / "default" / job_id
    wait_until(lambda: folder.is_dir() and newest_step(folder) == 10, 60, "ten steps are written")
    assert up.job(job_id)["warnings"] == []


def test_the_guide_diagnoses_a_job_and_makes_it_again_with_a_change(up: Up, job_id: str) -> None:
    ask, _ = blocks("diagnosis.md", "sh")
    shown = shell(up, ask, JOB=job_id)
    assert "[too_few_steps]" in shown
    again = re.findall(r"^ftjob-\w+", shown, re.MULTILINE)[-1]
    job = up.job(again)
    assert (job["status"], job["seed"]) == ("succeeded", up.job(job_id)["seed"])
    assert job["method"]["reinforcement"]["hyperparameters"]["beta"] == 0.1


def test_the_guide_does_the_same_over_http(up: Up, job_id: str) -> None:
    _, over_http = blocks("diagnosis.md", "sh")
    diagnosis, end = json.JSONDecoder().raw_decode(shown := shell(up, over_http, JOB=job_id))
    assert (diagnosis["object"], diagnosis["job_id"]) == ("fine_tuning.job.diagnosis", job_id)
    job = json.loads(shown[end:])
    assert job["method"]["reinforcement"]["hyperparameters"]["beta"] == 0.1
