"""`grpo files`: what is uploaded is shown first, columns become messages, previews and names."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.cli.commands.jobs import with_uploads
from service.cli.http.client import Client
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.embedded import call_grpo
from tests.service.importing.test_dataset_formats import dataset_folder
from tests.service.job_samples import jsonl, make_model, row, upload

pytestmark = on_sqlite

Grpo = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def grpo(server_url: str, api_key: str) -> Grpo:
    environment = {**os.environ, "GRPO_URL": server_url, "GRPO_API_KEY": api_key, "COLUMNS": "300"}
    return lambda *arguments: call_grpo(*arguments, environment=environment)


def rows_of(client: TestClient, file_id: str) -> list[Any]:
    content = client.get(f"/v1/files/{file_id}/content").text
    return [json.loads(line) for line in content.splitlines()]


def test_a_csv_file_is_shown_and_uploaded_with_a_user_message_a_row(
    grpo: Grpo, client: TestClient, tmp_path: Path
) -> None:
    path = tmp_path / "capitals.csv"
    path.write_text('question,answer\n"Capital of France?",Paris\n"Capital of Peru?",Lima\n')
    done = grpo("files", "upload", path, "--map", "question=prompt")
    assert done.returncode == 0, done.stderr
    rows = [row("Capital of France?", "Paris"), row("Capital of Peru?", "Lima")]
    assert done.stderr.splitlines() == [
        "capitals.jsonl: 2 rows",
        "columns: messages, answer",
        f"first row: {json.dumps(rows[0])}",
    ]
    assert rows_of(client, done.stdout.strip()) == rows
    again = grpo("files", "upload", path, "--map", "question=prompt", "--json")
    assert (json.loads(again.stdout)["id"], again.stderr) == (done.stdout.strip(), "")


@pytest.mark.parametrize(
    ("first", "way"),
    [
        ({"question": "2+2?", "answer": "4"}, "Try --map question=prompt"),
        ({"id": 7, "instruction": "Add.", "input": "2, 2", "output": "4"}, "Try --map instruction=prompt"),
        ({"id": 7, "task": "2+2?"}, "Try --map task=prompt"),
        ({"Frage des Tages": "2+2?"}, "Try --map 'Frage des Tages=prompt'"),
        (
            {"conversations": [{"from": "human", "value": "2+2?"}]},
            'Write each row as {"messages": [{"role": "',
        ),
        ({"data": [{"prompt": "2+2?"}]}, 'Write each row as {"messages": [{"role": "user"'),
    ],
)
def test_columns_without_a_prompt_are_reported_with_a_way_to_one(
    grpo: Grpo, tmp_path: Path, first: dict[str, Any], way: str
) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(first) + "\n")
    done = grpo("files", "upload", tmp_path / "rows.jsonl")
    assert done.returncode == 0
    assert f"No column is named prompt or messages: no job can use it. {way}" in done.stderr


def test_a_folder_of_datasets_is_uploaded_by_split_and_configuration(
    grpo: Grpo, client: TestClient, tmp_path: Path
) -> None:
    folder = Path(dataset_folder(tmp_path / "gsm"))
    configs = {"easy": "data/test-*", "hard": "data/train-*"}
    card = "".join(f"- config_name: {name}\n  data_files: {path}\n" for name, path in configs.items())
    (folder / "README.md").write_text(f"---\nconfigs:\n{card}---\n")
    mapped = ("--map", "question=prompt")
    done = grpo("files", "upload", folder, "--config", "hard", "--split", "train[:2]", *mapped)
    assert done.returncode == 0, done.stderr
    assert rows_of(client, done.stdout.strip()) == [row("0+1?", "0"), row("1+1?", "1")]
    refused = grpo("files", "upload", folder, *mapped)
    assert refused.returncode == 1
    assert "Please pick one among the available configs: ['easy', 'hard'] with --config" in refused.stderr


def test_without_a_network_a_hub_dataset_is_refused_in_one_line() -> None:
    command = [sys.executable, "-m", "service.cli", "files", "upload", "hf://openai/gsm8k"]
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: no connection to http://127.0.0.1:1")


def test_a_broken_line_is_refused_before_the_upload(grpo: Grpo, client: TestClient, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n{"prompt": }\n')
    done = grpo("files", "upload", tmp_path / "rows.jsonl")
    assert done.returncode == 1
    assert "rows.jsonl, line 2 is not JSON: Expecting value at character 12" in done.stderr
    assert client.get("/v1/files").json()["data"] == []


def test_a_stored_file_is_previewed_with_its_lengths_and_renamed(
    grpo: Grpo, client: TestClient, settings: Settings
) -> None:
    make_model(settings.home)
    file_id = upload(client, jsonl(row("one two"), row("one")))
    done = grpo("files", "preview", file_id, "--model", "tiny", "--limit", "1")
    assert done.returncode == 0, done.stderr
    shown = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert shown == [
        "rows 2",
        "columns messages, answer",
        "tokens min 3, median 3, p95 4, max 4 (2 rows counted)",
        f"1: {json.dumps(row('one two'))}",
    ]
    assert json.loads(grpo("files", "preview", file_id, "--json").stdout)["num_rows"] == 2
    assert grpo("files", "rename", file_id, "short.jsonl").stdout.strip() == f"{file_id} is short.jsonl"
    assert client.get(f"/v1/files/{file_id}").json()["filename"] == "short.jsonl"


def test_an_empty_name_of_a_dataset_is_not_the_folder_of_the_job_file(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1+1"}\n')
    body = {"training_file": "", "validation_file": ""}
    with Client("http://127.0.0.1:9", "key") as client:
        assert with_uploads(client, body, tmp_path) == body  # the service refuses it
