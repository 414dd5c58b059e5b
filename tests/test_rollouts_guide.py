"""The commands of docs/read-a-run/rollouts.md work and print what the page shows."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.app import create_app
from service.platform.db import Database
from service.settings import Settings
from service.web.auth import create_key
from tests.conftest import on_sqlite
from tests.service.job_samples import make_model
from tests.service.rollouts.rollout_samples import add_graded_job, add_group, scored
from tests.service.serving.processes import serving

pytestmark = on_sqlite

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs" / "read-a-run" / "rollouts.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)


@pytest.fixture
def shell(settings: Settings, database: Database, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Environment of a user with a job of two steps."""
    make_model(settings.home)
    job_id = add_graded_job(settings, database)
    failed = {"label": "test 1 of 2: f(1)", "passed": False, "got": "9", "expected": "2"}
    formed = scored("<answer>9</answer>", 0.0, 1.0, explanations={"accuracy": [failed]})
    add_group(
        database,
        job_id,
        1,
        0,
        [scored("<answer>2</answer>", 1.0, 1.0), formed],
        row=1,
        reference={"answer": 2},
    )
    add_group(database, job_id, 2, 0, [scored("4", 0.0, 0.0, finish="length"), formed], row=2)
    with database.transaction() as session:
        key = create_key(session, "tenant-a")
    with serving(create_app(settings)) as url:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        given = {"PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "COLUMNS": "240"}
        yield given | {"GRPO_URL": url, "GRPO_API_KEY": key, "JOB": job_id}


def run(block: str, shell: dict[str, str], folder: Path) -> str:
    command = ["bash", "-euc", block]
    done = subprocess.run(command, env=shell, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_commands_of_the_guide_print_what_it_shows(shell: dict[str, str], tmp_path: Path) -> None:
    look, ask, export, again, rescore = BLOCKS
    listed = run(look, shell, tmp_path)
    assert listed.count("<answer>9</answer>") == 2 + 2 + 2
    assert "answer=2" in listed
    assert "test 1 of 2: f(1): got 9" in listed
    assert '"parts":["accuracy","format"]' in run(ask, shell, tmp_path)
    run(export, shell, tmp_path)
    best, pairs = ((tmp_path / name).read_text().splitlines() for name in ("best.jsonl", "pairs.jsonl"))
    assert len((tmp_path / "rollouts.jsonl").read_text().splitlines()) == 2
    assert [json.loads(row)["messages"][-1]["content"] for row in best] == ["<answer>2</answer>"]
    assert [json.loads(row)["margin"] for row in pairs] == [0.8]
    assert run(again, shell, tmp_path).startswith("ftjob-")
    words, numbers = run(rescore, shell, tmp_path).split("\n{", 1)
    assert "4 completions, 2 groups, steps 1 to 2" in words
    assert "0.35 → 0.5" in words
    summary = json.loads("{" + numbers)["summary"]
    assert summary["after"]["mean_reward"] == 0.5
    assert summary["num_sign_changes"] == 2


def test_a_refused_export_leaves_no_file(shell: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    command = "grpo rollouts $JOB --export sft --min-reward 5 -o out/best.jsonl"
    done = subprocess.run(
        ["bash", "-c", command], env=shell, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "code=nothing_to_export param=min_reward" in done.stderr
    assert list((tmp_path / "out").iterdir()) == []
