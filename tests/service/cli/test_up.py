"""`grpo up`: the first key, restarts, one process tree per home, a clean shutdown."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from examples.tiny_model import make_model
from grpo_engine.process.parent_death import dies_with_this_process
from tests.service.embedded import (
    GRPO,
    environment,
    grpo_job,
    grpo_up,
    processes_of,
    run_grpo,
    write_rows,
)
from tests.support.servers import free_port, is_ok, wait_until

FAST_RECOVERY = {
    "GRPO_LEASE_SECONDS": "2",
    "GRPO_SELF_FENCE_SECONDS": "1.5",
    "GRPO_HEARTBEAT_SECONDS": "0.2",
    "GRPO_SWEEP_SECONDS": "0.2",
    "GRPO_RETRY_BACKOFF_SECONDS": "0.1",
}


def test_the_first_start_writes_a_private_key_that_later_starts_keep(
    tmp_path: Path,
) -> None:
    keys = []
    for _ in range(2):
        with grpo_up(tmp_path / "home") as up:
            key_file = Path(up.ready["key_file"])
            assert key_file == tmp_path / "home" / "api_key"
            assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
            assert up.json("list") == []
            keys.append(key_file.read_text())
    assert keys[0] == keys[1]
    assert keys[0].startswith("grpo_")
    assert not list((tmp_path / "home").glob("*.new"))


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def umask_of(pid: int) -> str:
    found = re.search(r"^Umask:\s*(\d+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def test_the_home_and_its_files_become_private(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o755)
    with grpo_up(home) as up:
        up.grpo("files", "upload", write_rows(tmp_path / "rows.jsonl"))
        (stored,) = [path for path in (home / "artifacts").rglob("*") if path.is_file()]
        assert mode_of(home) == 0o700
        assert mode_of(home / "grpo.db") == 0o600
        assert (mode_of(home / "artifacts"), mode_of(stored)) == (0o700, 0o600)
        assert [umask_of(up.ready[name]) for name in ("api_pid", "worker_pid")] == ["0077", "0077"]


@pytest.mark.parametrize("command", [["serve", "--port", "{port}"], ["worker"]])
def test_a_process_started_alone_writes_private_files(tmp_path: Path, command: list[str]) -> None:
    arguments = [part.format(port=free_port()) for part in command]
    (tmp_path / "home").mkdir()
    assert run_grpo("migrate", environment=environment(tmp_path / "home")).returncode == 0
    assert mode_of(tmp_path / "home" / "grpo.db") == 0o600
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [*GRPO, *arguments],
            env=environment(tmp_path / "home"),
            stdout=log,
            stderr=log,
            umask=0o022,
            preexec_fn=dies_with_this_process(signal.SIGKILL),
        )
        try:
            wait_until(lambda: umask_of(process.pid) == "0077", 30)
        finally:
            process.kill()
            process.wait()


def test_a_killed_api_or_worker_process_is_restarted(tmp_path: Path) -> None:
    with grpo_up(tmp_path / "home") as up:
        before = set(processes_of(up.home))
        os.kill(up.ready["api_pid"], signal.SIGKILL)
        os.kill(up.ready["worker_pid"], signal.SIGKILL)
        wait_until(lambda: len(set(processes_of(up.home)) - before) == 2, 30)
        wait_until(lambda: is_ok(f"{up.url}/livez"), 30)
        assert "API process ended with -9; restarting in 0.5 s" in (up.home / "up.log").read_text()


def test_sigterm_releases_the_running_job_and_leaves_no_process(tmp_path: Path) -> None:
    home = tmp_path / "home"
    make_model(home / "models" / "tiny", hidden=32, layers=1)
    write_rows(tmp_path / "rows.jsonl", faults={"step_seconds": 0.1})
    (tmp_path / "job.json").write_text(json.dumps(grpo_job("rows.jsonl", steps=500)))
    with grpo_up(home) as up:
        job_id = up.json("submit", tmp_path / "job.json")["id"]
        wait_until(lambda: up.job(job_id)["progress"]["step"] > 0, 30)
        assert up.stop() == 0
    assert processes_of(home) == []
    with grpo_up(home) as up:
        wait_until(lambda: up.job(job_id)["attempt"] == 2, 30)
        job = up.job(job_id)
        assert job["progress"]["step"] > 0
        messages = [event["message"] for event in up.json("events", job_id, "--limit", "100")]
        assert any("resumed from step" in message for message in messages)
        up.json("cancel", job_id)


def test_ctrl_c_in_a_terminal_exits_with_code_zero(tmp_path: Path) -> None:
    with grpo_up(tmp_path / "home") as up:
        assert up.stop(signal.SIGINT) == 0
    assert processes_of(tmp_path / "home") == []


def test_a_second_signal_kills_an_engine_that_does_not_stop(tmp_path: Path) -> None:
    home = tmp_path / "home"
    make_model(home / "models" / "tiny", hidden=32, layers=1)
    write_rows(tmp_path / "rows.jsonl", faults={"step_seconds": 0.1, "ignore_sigterm": True})
    (tmp_path / "job.json").write_text(json.dumps(grpo_job("rows.jsonl", steps=5000)))
    with grpo_up(home) as up:
        job_id = up.json("submit", tmp_path / "job.json")["id"]
        wait_until(lambda: up.job(job_id)["progress"]["step"] > 0, 30)
        up.process.send_signal(signal.SIGINT)
        wait_until(lambda: "again to kill" in (home / "up.log").read_text(), 10)
        assert up.process.poll() is None
        assert up.stop(signal.SIGINT) == 0
    wait_until(lambda: processes_of(home) == [], 10)


def test_the_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    with grpo_up(tmp_path / "home") as up:
        assert up.stop(signal.SIGKILL) == -signal.SIGKILL
        wait_until(lambda: processes_of(up.home) == [], 30)


def test_a_job_survives_a_killed_worker_process(tmp_path: Path) -> None:
    home = tmp_path / "home"
    make_model(home / "models" / "tiny", hidden=32, layers=1)
    write_rows(tmp_path / "rows.jsonl", faults={"step_seconds": 0.05})
    (tmp_path / "job.json").write_text(json.dumps(grpo_job("rows.jsonl", steps=60)))
    with grpo_up(home, **FAST_RECOVERY) as up:
        job_id = up.json("submit", tmp_path / "job.json")["id"]
        wait_until(lambda: up.job(job_id)["progress"]["step"] > 10, 30)
        os.kill(up.ready["worker_pid"], signal.SIGKILL)
        watched = up.grpo("watch", job_id, "--json")
        assert watched.returncode == 0, watched.stderr
        steps = [
            event["data"]["step"]
            for event in map(json.loads, watched.stdout.splitlines())
            if event["event"] == "metrics" and "reward" in event["data"]
        ]
        assert steps == list(range(1, 61))
        assert up.job(job_id)["attempt"] == 2


def test_watching_continues_after_a_restart_of_the_api(tmp_path: Path) -> None:
    home = tmp_path / "home"
    make_model(home / "models" / "tiny", hidden=32, layers=1)
    write_rows(tmp_path / "rows.jsonl", faults={"step_seconds": 0.1})
    (tmp_path / "job.json").write_text(json.dumps(grpo_job("rows.jsonl", steps=60)))
    with grpo_up(home) as up:
        job_id = up.json("submit", tmp_path / "job.json")["id"]
        wait_until(lambda: up.job(job_id)["progress"]["step"] > 0, 30)
        os.kill(up.ready["api_pid"], signal.SIGKILL)
        wait_until(lambda: is_ok(f"{up.url}/livez"), 30)
        watched = up.grpo("watch", job_id, "--json")
        assert watched.returncode == 0, watched.stderr
        ids = [int(json.loads(line)["id"]) for line in watched.stdout.splitlines()]
        assert ids == list(range(1, len(ids) + 1))


def test_a_second_grpo_up_on_the_same_home_is_refused(tmp_path: Path) -> None:
    with grpo_up(tmp_path / "home") as up:
        done = run_grpo("up", "--port", "0", environment=up.environment)
        assert done.returncode == 1
        assert f"`grpo up` already runs on {up.home} (pid {up.process.pid})" in done.stderr
        assert is_ok(f"{up.url}/livez")


def test_a_used_port_is_a_clear_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run_grpo("up", "--port", str(port), environment=environment(tmp_path / "home"))
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: cannot listen on 127.0.0.1:{port}: Address already in use")
    assert "choose another with --port" in done.stderr


def test_grpo_up_refuses_production_settings(tmp_path: Path) -> None:
    env = environment(tmp_path, GRPO_MODE="production")
    refused = run_grpo("up", environment=env)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("Error: production needs PostgreSQL: set GRPO_DATABASE_URL")
    env |= {
        "GRPO_DATABASE_URL": "postgresql://user@127.0.0.1/none",
        "GRPO_BROKER_URL": "redis://127.0.0.1:9",
    }
    refused = run_grpo("up", environment=env)
    assert refused.stderr.startswith("Error: GRPO_MODE is production")
