"""The `grpo` command and the guides against a `grpo up` with a fake engine."""

import hashlib
import json
import re
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.tiny_model import make_model
from service.jobs.model.schemas import JobCreate
from tests.service.embedded import Up, call_grpo, grpo_job, run_shell, write_rows
from tests.support.servers import wait_until
from worker.sinks.tensorboard_files import newest_step

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def slow_job_file(tmp_path: Path) -> Path:
    """A job that takes longer than any test."""
    write_rows(tmp_path / "slow.jsonl", faults={"step_seconds": 0.2})
    path = tmp_path / "slow.json"
    path.write_text(json.dumps(grpo_job("slow.jsonl", steps=1000)))
    return path


def test_an_uploaded_file_is_listed_with_its_size(up: Up, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "sums.jsonl", num_rows=7)  # the same content would be the same file
    file = up.json("files", "upload", path)
    listed = {each["id"]: each for each in up.json("files", "list")}
    assert listed[file["id"]]["bytes"] == path.stat().st_size
    assert listed[file["id"]]["filename"] == "sums.jsonl"


def test_a_parquet_file_is_uploaded_as_jsonl_with_renamed_columns(up: Up, tmp_path: Path) -> None:
    rows = [{"question": f"{n}+1?", "answer": n + 1} for n in range(3)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "sums.parquet")
    file = up.json("files", "upload", tmp_path / "sums.parquet", "--map", "question=prompt")
    assert file["filename"] == "sums.jsonl"
    turns = [[{"role": "user", "content": f"{n}+1?"}] for n in range(3)]
    expected = "".join(json.dumps({"messages": turns[n], "answer": n + 1}) + "\n" for n in range(3))
    assert file["sha256"] == hashlib.sha256(expected.encode()).hexdigest()


def test_a_dataset_that_cannot_be_converted_is_refused_before_the_upload(up: Up, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n1\n")
    for arguments, reason in (
        (("rows.csv",), "row 1 does not have 2 cells"),
        (("rows.csv", "--map", "a"), "--map 'a' is not COLUMN=NAME"),
        (("gone.csv",), "No such file or directory"),
    ):
        done = up.grpo("files", "upload", tmp_path / arguments[0], *arguments[1:])
        assert (done.returncode, reason in done.stderr) == (1, True), done.stderr


def test_a_submitted_job_is_watched_to_its_end_and_downloaded(up: Up, job_file: Path, tmp_path: Path) -> None:
    watched = up.grpo("submit", job_file, "--watch", "--json")
    assert watched.returncode == 0, watched.stderr
    job, *events = [json.loads(line) for line in watched.stdout.splitlines()]
    metrics = [event["data"] for event in events if event["event"] == "metrics"]
    assert [row["step"] for row in metrics if "reward" in row] == list(range(1, 11))
    assert [int(event["id"]) for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["data"]["status"] == "succeeded"

    status = up.json("status", job["id"])
    assert status["progress"]["step"] == 10
    listed = up.grpo("checkpoints", job["id"]).stdout.splitlines()
    assert listed[0].split("  ")[0] == "step"
    assert "held-out reward" in listed[0]
    assert listed[1].split()[0] == "10"
    assert job["id"] in [each["id"] for each in up.json("list")]

    found = up.json("download", job["id"], "--to", tmp_path / "adapters", "--extract")
    folder, archive = Path(found["path"]), tmp_path / "adapters" / f"{job['id']}.tar.gz"
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == found["sha256"]
    assert folder == tmp_path / "adapters" / job["id"]
    assert (folder / "adapter_config.json").is_file()
    module = f"{job['id']}={folder}"
    assert found["serve"] == f"vllm serve tiny --enable-lora --lora-modules {module} --max-lora-rank 16"
    assert sorted(path.name for path in folder.parent.iterdir()) == [job["id"], f"{job['id']}.tar.gz"]


def test_watching_as_text_shows_status_evaluation_and_the_trained_model(up: Up, job_file: Path) -> None:
    done = up.grpo("submit", job_file, "--watch")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("ftjob-")
    assert "Held-out rows after step 0: reward 0.100" in lines
    assert any(line.startswith("step ") and "reward" in line for line in lines)
    assert f"{lines[0]} succeeded" in lines
    assert lines[-1].startswith("Model: ft:tiny:default:")


def test_a_job_is_paused_resumed_and_cancelled(up: Up, slow_job_file: Path) -> None:
    job_id = up.json("submit", slow_job_file)["id"]
    wait_until(lambda: up.job(job_id)["progress"]["step"] > 0, 120)
    assert up.json("pause", job_id)["phase"] == "pausing"
    wait_until(lambda: up.job(job_id)["status"] == "paused", 120)
    assert up.json("resume", job_id)["status"] == "queued"
    wait_until(lambda: up.job(job_id)["status"] == "running", 120)
    up.json("cancel", job_id)
    wait_until(lambda: up.job(job_id)["status"] == "cancelled", 120)
    assert up.json("events", job_id, "--limit", "1")[0]["level"] in ("info", "warn")
    assert up.grpo("watch", job_id).returncode == 1


def test_a_refused_job_prints_one_line_with_code_and_field(up: Up, tmp_path: Path) -> None:
    body = grpo_job(str(write_rows(tmp_path / "rows.jsonl")))
    body["method"]["reinforcement"]["hyperparameters"]["group_size"] = 1
    (tmp_path / "bad.json").write_text(json.dumps(body))
    done = up.grpo("submit", tmp_path / "bad.json")
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: ")
    assert "param=method.reinforcement.hyperparameters.group_size]" in line
    assert "code=invalid_value" in line


def test_a_missing_dataset_is_an_error_with_its_path(up: Up, tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps(grpo_job("missing.jsonl")))
    done = up.grpo("submit", tmp_path / "job.json")
    assert done.returncode == 1
    assert f"{tmp_path / 'missing.jsonl'} does not exist [param=training_file]" in done.stderr


def test_options_override_the_job_file(up: Up, job_file: Path, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "other.jsonl", num_rows=4)
    done = up.grpo("submit", job_file, "--training-file", rows, "--model", "missing")
    assert done.returncode == 1
    assert "param=model" in done.stderr
    job = up.json("submit", job_file, "--training-file", rows)
    files = {each["id"]: each["filename"] for each in up.json("files", "list")}
    assert files[job["training_file"]] == "other.jsonl"


def test_a_read_only_key_cannot_submit_and_a_revoked_key_cannot_read(up: Up, job_file: Path) -> None:
    key = up.json("keys", "create", "--tenant", "acme", "--read-only")["key"]
    assert up.json("--api-key", key, "list") == []
    refused = up.grpo("--api-key", key, "submit", job_file)
    assert refused.returncode == 1
    assert "This API key lacks the scope write; its scopes: read. [code=insufficient_scope]" in refused.stderr
    assert refused.stderr.endswith("See docs/reference/errors.md#insufficient_scope\n")
    listed = up.grpo("keys", "list").stdout
    assert " read " in next(line for line in listed.splitlines() if line.startswith(key.split("_")[1]))
    assert up.json("keys", "revoke", key)["revoked"] is True
    refused = up.grpo("--api-key", key, "list")
    assert refused.returncode == 1
    assert "code=invalid_api_key" in refused.stderr
    revoked = {each["id"]: each["revoked_at"] for each in up.json("keys", "list")}
    assert revoked[key.split("_")[1]] is not None


def test_the_key_log_shows_who_changed_what(up: Up) -> None:
    made = up.json("keys", "create", "--tenant", "logged")
    up.json("keys", "revoke", made["id"])
    logged = up.json("keys", "log", "--tenant", "logged", "--limit", "5")
    assert [(row["key_id"], row["action"], row["object_id"]) for row in logged] == [
        ("cli", "key.revoke", made["id"]),
        ("cli", "key.create", made["id"]),
    ]
    table = up.grpo("keys", "log", "--tenant", "logged").stdout.splitlines()
    assert table[0].split() == ["time", "tenant", "key", "action", "object", "request"]
    assert "key.revoke" in table[1]


def test_models_are_shown_with_size_context_family_and_fit(up: Up) -> None:
    head, *rows = up.grpo("models").stdout.splitlines()
    assert head.split() == ["name", "owner", "size", "context", "family", "LoRA", "full", "created"]
    (tiny,) = [row.split() for row in rows if row.startswith("tiny ")]
    assert (tiny[1], tiny[4:8]) == ("catalogue", ["512", "qwen3", "fits", "fits"])


def test_an_added_model_is_in_the_catalogue_immediately(up: Up, tmp_path: Path) -> None:
    folder = make_model(tmp_path / "another", hidden=32, layers=1)
    added = up.grpo("models", "add", "Mine/another", folder)
    assert (added.stdout, added.stderr) == (f"Mine/another is {folder}, in {up.home / 'models.json'}\n", "")
    assert "Mine/another" in [model["id"] for model in up.json("models", "list")]


def test_a_model_added_to_another_home_than_the_service_s_is_warned_of(up: Up, tmp_path: Path) -> None:
    folder = make_model(tmp_path / "another", hidden=32, layers=1)
    environment = {**up.environment, "GRPO_URL": up.url, "GRPO_HOME": str(tmp_path / "elsewhere")}
    added = call_grpo("models", "add", "elsewhere", folder, environment=environment)
    assert added.stdout == f"elsewhere is {folder}, in {tmp_path / 'elsewhere' / 'models.json'}\n"
    assert f"the service at {up.url} refuses the key of this home" in added.stderr


def test_without_a_service_the_error_explains_how_to_start_one(up: Up) -> None:
    env = {**up.environment, "GRPO_URL": "http://127.0.0.1:9"}
    done = call_grpo("list", environment=env)
    assert done.returncode == 1
    assert "code=unreachable" in done.stderr
    assert "`grpo up` starts the service here" in done.stderr


def test_a_service_on_this_machine_is_reached_without_the_environment_s_proxy(up: Up) -> None:
    dead = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "socks5://127.0.0.1:9")
    done = call_grpo("list", environment={**up.environment, **dead, "GRPO_URL": up.url})
    assert (done.returncode, done.stderr) == (0, "")


def test_a_proxy_of_an_unsupported_kind_is_an_error_with_its_reason(up: Up) -> None:
    proxied = {**up.environment, "all_proxy": "socks5://127.0.0.1:9", "GRPO_URL": "http://grpo.example"}
    done = call_grpo("list", environment=proxied)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: cannot use the proxy of this environment: ")
    assert "httpx[socks]" in done.stderr


def test_help_lists_the_commands_and_version_prints_the_version(up: Up) -> None:
    assert re.fullmatch(r"grpo-service \d+\.\d+\.\d+\n", up.grpo("--version").stdout)
    done = up.grpo("--help")
    names = {"up", "serve", "worker", "migrate", "submit", "watch", "download", "files", "models", "keys"}
    assert names <= set(done.stdout.split())


def test_an_audit_reports_only_a_damaged_object(up: Up, job_file: Path, tmp_path: Path) -> None:
    job = json.loads(up.grpo("submit", job_file, "--watch", "--json").stdout.splitlines()[0])
    assert up.json("audit", job["id"]) == {"num_jobs": 1, "violations": {job["id"]: []}}
    assert up.json("audit")["num_jobs"] >= 1
    (adapter,) = (up.home / "artifacts" / "jobs" / job["id"] / "results").glob("*/adapter.tar.gz")
    whole = adapter.read_bytes()
    adapter.write_bytes(whole[:-1])
    damaged = up.grpo("audit", job["id"])
    adapter.write_bytes(whole)
    assert damaged.returncode == 1
    assert "stored content never changes" in damaged.stdout


def test_the_audit_of_an_unknown_job_is_an_error(up: Up) -> None:
    found = up.grpo("audit", "ftjob-nowhere", "--json")
    assert (found.returncode, json.loads(found.stderr)["error"]["code"]) == (1, "job_not_found")


def blocks(guide: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / guide).read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def guided_job(up: Up, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Id of the job that docs/operate/sinks.md submits."""
    folder = tmp_path_factory.mktemp("guide")
    write_rows(folder / "rows.jsonl")
    job = {**grpo_job("rows.jsonl"), "integrations": [{"type": "tensorboard"}]}
    (folder / "job.json").write_text(json.dumps(job))
    (submit,) = blocks("operate/sinks.md", "sh")
    return re.findall(r"^ftjob-\w+", shell(up, submit, folder), re.MULTILINE)[0]


def shell(up: Up, script: str, folder: Path, **variables: str) -> str:
    """Output of a guide's commands, run in `folder`."""
    key = Path(up.ready["key_file"]).read_text().strip()
    path = f"{Path(sys.executable).parent}:{up.environment['PATH']}"
    env = {**up.environment, "PATH": path, "GRPO_URL": up.url, "GRPO_API_KEY": key, **variables}
    return run_shell(script, folder, env)


def test_the_guide_s_integrations_are_valid() -> None:
    (example,) = blocks("operate/sinks.md", "json")
    body = JobCreate.model_validate({**grpo_job("file-1"), **json.loads(example)})
    assert [one.type for one in body.integrations or ()] == ["wandb", "mlflow", "tensorboard"]


def test_the_steps_of_a_job_are_in_the_tensorboard_folder(up: Up, guided_job: str) -> None:
    folder = up.home / "tensorboard" / "default" / guided_job
    wait_until(lambda: folder.is_dir() and newest_step(folder) == 10, 120, "ten steps are written")
    assert up.job(guided_job)["warnings"] == []


def test_the_guide_diagnoses_a_job_and_retries_it_with_a_change(
    up: Up, guided_job: str, tmp_path: Path
) -> None:
    commands, _ = blocks("read-a-run/diagnosis.md", "sh")
    shown = shell(up, commands, tmp_path, JOB=guided_job)
    assert "[too_few_steps]" in shown
    again = re.findall(r"^ftjob-\w+", shown, re.MULTILINE)[-1]
    job = up.job(again)
    assert (job["status"], job["seed"]) == ("succeeded", up.job(guided_job)["seed"])
    assert job["method"]["reinforcement"]["hyperparameters"]["beta"] == 0.1


def test_the_guide_diagnoses_and_retries_over_http(up: Up, guided_job: str, tmp_path: Path) -> None:
    _, over_http = blocks("read-a-run/diagnosis.md", "sh")
    diagnosis, end = json.JSONDecoder().raw_decode(shown := shell(up, over_http, tmp_path, JOB=guided_job))
    assert (diagnosis["object"], diagnosis["job_id"]) == ("fine_tuning.job.diagnosis", guided_job)
    job = json.loads(shown[end:])
    assert job["method"]["reinforcement"]["hyperparameters"]["beta"] == 0.1


def test_the_log_is_printed_until_the_job_ends(up: Up, job_file: Path) -> None:
    job_id = up.json("submit", job_file)["id"]
    assert up.grpo("logs", job_id, "--follow").stdout.splitlines() == ["fake engine starts"]
    line = up.json("logs", job_id, "--tail", "1")
    assert (line["sequence"], line["attempt"], line["rank"]) == (1, 1, 0)
