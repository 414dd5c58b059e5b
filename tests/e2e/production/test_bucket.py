"""Artifacts of the production deployment in its bucket: a checkpoint of a lost worker, results, no secret."""

import hashlib
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.cli.http.client import JOBS
from tests.e2e.production.deployment import Production
from tests.service.embedded import grpo_job, write_rows
from tests.support.s3 import SECRET, SESSION_TOKEN, Bucket
from tests.support.s3_proxy import CUT, pass_all, strike
from tests.support.servers import wait_until
from tests.worker.outcomes import expected_weights

STEPS = 60
FILES = "/v1/files"


@pytest.fixture
def http(deployment: Production) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {deployment.key()}"}
    with httpx.Client(base_url=deployment.url, headers=headers, timeout=60) as http:
        yield http


def upload(http: httpx.Client, rows: Path) -> str:
    form = {"files": {"file": rows.read_bytes()}, "data": {"purpose": "fine-tune"}}
    return str(http.post(FILES, **form).raise_for_status().json()["id"])  # type: ignore[arg-type]


def ended(http: httpx.Client, job_id: str) -> dict[str, Any]:
    def job() -> dict[str, Any]:
        return dict(http.get(f"{JOBS}/{job_id}").raise_for_status().json())

    wait_until(lambda: job()["status"] in ("succeeded", "failed"), 120, "the job's end")
    return job()


def listed(http: httpx.Client, path: str, **params: int) -> list[dict[str, Any]]:
    return list(http.get(path, params=params).raise_for_status().json()["data"])


def tensors(archive: bytes, folder: Path) -> bytes:
    """The adapter that the fake engine makes."""
    (folder / "adapter.tar.gz").write_bytes(archive)
    with tarfile.open(folder / "adapter.tar.gz") as packed:
        member = packed.extractfile("adapter_model.safetensors")
        assert member is not None
        return member.read()


@pytest.mark.slow
def test_a_killed_worker_s_job_resumes_from_its_checkpoint_in_the_bucket(
    deployment: Production, http: httpx.Client, s3: Bucket, tmp_path: Path
) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", faults={"step_seconds": 0.05})
    file_id = upload(http, rows)
    job_id = http.post(JOBS, json=grpo_job(file_id, steps=STEPS)).raise_for_status().json()["id"]
    # the first upload of a checkpoint is interrupted as well
    s3.proxy.rule = strike(CUT, "PUT", "/checkpoints/", times=1)
    wait_until(
        lambda: any("/checkpoints/10-" in key for key in s3.keys), 120, "a checkpoint is in the bucket"
    )
    deployment.kill("worker")
    assert len(s3.proxy.struck) == 1
    s3.proxy.rule = pass_all
    deployment.start("worker")
    job = ended(http, job_id)
    assert (job["status"], job["attempt"] >= 2) == ("succeeded", True), job["failure"]
    messages = [event["message"] for event in listed(http, f"{JOBS}/{job_id}/events", limit=100)]
    assert any(message.startswith("Training resumed from step ") for message in messages)
    steps = [row["step"] for row in listed(http, f"{JOBS}/{job_id}/metrics", after_step=0)]
    assert steps == list(range(1, STEPS + 1))
    check_results(http, job, s3, tmp_path)
    assert http.delete(f"{FILES}/{file_id}").json()["deleted"] is True
    assert f"files/{file_id}" not in s3.keys


def check_results(http: httpx.Client, job: dict[str, Any], s3: Bucket, folder: Path) -> None:
    """Whole, in ranges, by its tag and as a file: the bytes equal those of an undisturbed run."""
    (adapter,) = (each for each in job["artifacts"] if each["kind"] == "adapter")
    path = f"{JOBS}/{job['id']}/adapter"
    whole = http.get(path)
    assert hashlib.sha256(whole.content).hexdigest() == adapter["sha256"]
    assert tensors(whole.content, folder) == expected_weights(seed=5, num_steps=STEPS)
    part = http.get(path, headers={"range": "bytes=10-", "if-range": whole.headers["etag"]})
    assert (part.status_code, part.content) == (206, whole.content[10:])
    assert http.get(path, headers={"if-none-match": whole.headers["etag"]}).status_code == 304
    contents = {http.get(f"{FILES}/{file_id}/content").content for file_id in job["result_files"]}
    assert whole.content in contents
    assert any(content.startswith(b"step,") for content in contents)
    assert any(key.endswith("/adapter.tar.gz") and "/results/" in key for key in s3.keys)


def test_no_log_of_the_deployment_contains_credentials(deployment: Production) -> None:
    logs = "".join(path.read_text() for path in deployment.home.glob("*.log"))
    assert "started" in logs
    assert SECRET not in logs
    assert SESSION_TOKEN not in logs
