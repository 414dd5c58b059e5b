"""A script for OpenAI's own service runs here; terms without effect or equivalent are reported."""

import csv
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from examples.openai_script import MODEL, SCHEMA
from examples.tiny_model import make_model as make_whole_model
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.embedded import ROOT, environment, grpo_up
from tests.service.job_samples import GRADER, jsonl, make_model, reinforcement, row

pytestmark = on_sqlite  # the contents of a job do not depend on the database


def test_the_script_runs_unmodified_with_another_base_url(tmp_path: Path) -> None:
    home, out = tmp_path / "home", tmp_path / "out"
    out.mkdir()
    make_whole_model(home / "models" / MODEL, hidden=32, layers=1)
    with grpo_up(home) as up:
        key = Path(up.ready["key_file"]).read_text().strip()
        where = {"OPENAI_BASE_URL": f"{up.url}/v1", "OPENAI_API_KEY": key}
        done = subprocess.run(
            [sys.executable, ROOT / "examples" / "openai_script.py"],
            env=environment(home) | where,
            cwd=out,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert f"trained ft:{MODEL}:default:sums:" in lines[-1]
    assert any(line.startswith("checkpoint 4 ") for line in lines)
    with (out / "metrics.csv").open() as table:
        assert next(csv.reader(table))[0] == "step"
    with tarfile.open(out / "adapter.tar.gz") as archive:
        assert {"adapter_config.json", "README.md", "manifest.json"} <= set(archive.getnames())


@pytest.fixture
def training_file(openai_client: OpenAI, settings: Settings) -> str:
    make_model(settings.home)
    return openai_client.files.create(
        file=("train.jsonl", jsonl(row(), row("3+3?", "6"))), purpose="fine-tune"
    ).id


def warnings_of(client: OpenAI, training_file: str, method: Any) -> dict[str, str]:
    job: Any = client.fine_tuning.jobs.create(model="tiny", training_file=training_file, method=method)
    return {warning["code"]: warning["message"] for warning in job.to_dict()["warnings"]}


def test_what_has_no_effect_is_accepted_with_a_warning(openai_client: OpenAI, training_file: str) -> None:
    method = reinforcement(reasoning_effort="high", compute_multiplier=0.5)
    method["reinforcement"]["response_format"] = SCHEMA
    found = warnings_of(openai_client, training_file, method)
    assert found["option_without_effect"] == (
        "reasoning_effort has no effect: the models of this service do not support it."
    )
    assert "response_format_not_enforced" in found


AUTO = (
    "n_epochs",
    "batch_size",
    "learning_rate_multiplier",
    "compute_multiplier",
    "eval_interval",
    "eval_samples",
)


def test_every_auto_of_openai_is_understood(openai_client: OpenAI, training_file: str) -> None:
    method = reinforcement(reasoning_effort="default", **dict.fromkeys(AUTO, "auto"))
    assert warnings_of(openai_client, training_file, method).keys() <= {"few_rows"}


TEXT = {"input": "{{sample.output_text}}", "reference": "{{item.answer}}"}
LABELS = {"type": "label_model", "model": "gpt-4o", "input": [], "labels": ["a"], "passing_labels": ["a"]}
NOT_HERE: dict[str, tuple[dict[str, Any], str]] = {
    "preference training": ({"type": "dpo", "dpo": {"hyperparameters": {}}}, "method"),
    "a judge that answers labels": (reinforcement(LABELS), "method.reinforcement.grader"),
    "embeddings": (
        reinforcement({"type": "text_similarity", "evaluation_metric": "cosine", **TEXT}),
        "method.reinforcement.grader.evaluation_metric",
    ),
    "a judge that no operator has named": (
        reinforcement(
            {"type": "score_model", "model": "gpt-4o", "input": [{"role": "user", "content": "Rate."}]}
        ),
        "method.reinforcement.grader",
    ),
    "effort that OpenAI does not know either": (
        reinforcement(GRADER, reasoning_effort="extreme"),
        "method.reinforcement.hyperparameters.reasoning_effort",
    ),
}


@pytest.mark.parametrize(("method", "field"), NOT_HERE.values(), ids=NOT_HERE)
def test_what_has_no_place_here_is_refused_with_its_field(
    openai_client: OpenAI, training_file: str, method: Any, field: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        openai_client.fine_tuning.jobs.create(model="tiny", training_file=training_file, method=method)
    assert str(caught.value.param).startswith(field), (caught.value.param, caught.value.message)
    assert os.linesep not in str(caught.value)
