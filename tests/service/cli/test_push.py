"""`grpo push` against a local hub, with the hub's own library."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.jobs.model.states import JobState
from service.platform.archives import pack
from service.platform.db import Database
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.cli.commands.hub import Hub, hub
from tests.service.embedded import call_grpo, run_grpo
from tests.service.job_samples import add_artifact, add_job

TOKEN = "hf_a_secret_token"
Push = Callable[..., subprocess.CompletedProcess[str]]
pytestmark = on_sqlite


@pytest.fixture
def here() -> Iterator[Hub]:
    with hub(TOKEN) as found:
        yield found


@pytest.fixture
def job_id(settings: Settings, database: Database, tmp_path: Path) -> str:
    folder, archive = tmp_path / "adapter", tmp_path / "adapter.tar.gz"
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    (folder / "adapter_config.json").write_text("{}")
    pack(folder, archive, {"README.md": "---\nbase_model: tiny\n---\n# A card\n"})
    job_id = add_job(database, JobState.SUCCEEDED)
    add_artifact(settings, database, job_id, "adapter", archive.read_bytes())
    return job_id


@pytest.fixture
def push(here: Hub, server_url: str, api_key: str, tmp_path: Path) -> Push:
    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "GRPO_URL": server_url,
            "GRPO_API_KEY": api_key,
            "HF_ENDPOINT": here.url,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_DISABLE_XET": "1",  # this hub stores large files with LFS
            **more,
        }
        return run_grpo("push", *arguments, environment=environment)

    return run


def test_weights_card_and_configuration_are_uploaded_in_one_commit(
    push: Push, here: Hub, job_id: str
) -> None:
    done = push(job_id, "--repo", "org/name", "--private", HF_TOKEN=TOKEN)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{here.url}/org/name"
    assert here.repositories["org/name"]["visibility"] == "private"
    assert here.files == {
        "adapter_model.safetensors": b"weights",
        "adapter_config.json": b"{}",
        "README.md": b"---\nbase_model: tiny\n---\n# A card\n",
    }
    assert len(here.messages) == 1
    assert job_id in here.messages[0]
    assert TOKEN not in done.stdout + done.stderr


def test_without_a_token_no_request_is_sent(push: Push, here: Hub, job_id: str) -> None:
    done = push(job_id, "--repo", "org/name", HF_TOKEN="")
    assert (done.returncode, here.repositories) == (1, {})
    assert "HF_TOKEN is not set" in done.stderr


@pytest.mark.parametrize("repo", ["org/sums--2", "org/sums.git", "örg/sums", "org"])
def test_a_name_that_the_hub_does_not_allow_is_refused_before_the_download(repo: str) -> None:
    environment = {**os.environ, "GRPO_URL": "http://127.0.0.1:9", "GRPO_API_KEY": "key", "HF_TOKEN": TOKEN}
    done = call_grpo("push", "ftjob-unknown", "--repo", repo, environment=environment)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert done.stderr.startswith(f"Error: {repo} is not a repository")


def test_a_token_without_write_permission_is_an_error_that_does_not_show_it(
    push: Push, here: Hub, job_id: str
) -> None:
    done = push(job_id, "--repo", "org/name", HF_TOKEN="hf_another_secret")
    assert (done.returncode, here.files) == (1, {})
    assert "the hub refused" in done.stderr
    assert "hf_another_secret" not in done.stdout + done.stderr


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "http://hub.invalid"], ids=["refused", "no name"])
def test_without_a_network_the_error_is_one_line(push: Push, job_id: str, endpoint: str) -> None:
    done = push(job_id, "--repo", "org/name", HF_TOKEN=TOKEN, HF_ENDPOINT=endpoint)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert line.startswith(f"Error: no response from {endpoint}: [Errno ")
    assert "[code=hub_unreachable]" in line
