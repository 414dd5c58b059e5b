"""`grpo up`: the first key, restarts, one process tree per home, a clean shutdown."""

import functools
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from examples.tiny_model import make_model
from grpo_engine.process.parent_death import dies_with_this_process
from service.app import create_app
from service.cli.operate.up import unready_reason
from service.platform.db import Database, connect
from service.settings import Settings
from tests.conftest import on_sqlite, settings_for
from tests.ports import free_port
from tests.service.embedded import (
    GRPO,
    Up,
    call_grpo,
    environment,
    grpo_job,
    grpo_up,
    processes_of,
    run_grpo,
    write_rows,
)
from tests.service.serving.processes import serving
from tests.support.servers import is_ok, wait_until
from tests.support.waiting import is_alive
from tests.worker.jobs import expire_leases

FAST_RECOVERY = {
    "GRPO_HEARTBEAT_SECONDS": "0.2",
    "GRPO_SWEEP_SECONDS": "0.2",
    "GRPO_RETRY_BACKOFF_SECONDS": "0.1",
}


@dataclass
class Restarted:
    """A home with mode 0755 at first; Ctrl-C stopped its service while job `interrupted` trained."""

    up: Up
    """The second start, whose processes are forked."""
    keys: list[str]
    """What the key file contained during each start."""
    modes: dict[str, int]
    umasks: list[str]
    interrupted: str


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restarted]:
    folder = tmp_path_factory.mktemp("restarted")
    home = folder / "home"
    make_model(home / "models" / "tiny", hidden=32, layers=1)
    home.chmod(0o755)
    with grpo_up(home, python=sys.executable, **FAST_RECOVERY) as up:
        key_file = Path(up.ready["key_file"])
        keys = [key_file.read_text()]
        job_id = submit(up, folder, steps=5000)
        (stored,) = [path for path in (home / "artifacts").rglob("*") if path.is_file()]
        modes = {path.name: mode_of(path) for path in (home, key_file, home / "grpo.db", home / "artifacts")}
        modes["artifact"] = mode_of(stored)
        umasks = [umask_of(up.ready[name]) for name in ("api_pid", "worker_pid")]
        wait_until(lambda: up.job(job_id)["progress"]["step"] > 0, 120)
        assert up.stop(signal.SIGINT) == 0
    assert processes_of(home) == []
    with grpo_up(home, **FAST_RECOVERY) as up:
        keys.append(key_file.read_text())
        yield Restarted(up, keys, modes, umasks, job_id)
        assert up.stop(signal.SIGTERM) == 0
    assert processes_of(home) == []


@contextmanager
def closing_database(home: Path) -> Iterator[Database]:
    database = connect(settings_for(home))
    yield database
    database.engine.dispose()


def submit(up: Up, folder: Path, *, steps: int, **faults: object) -> str:
    """Submit a job of the fake engine; its id."""
    write_rows(folder / "rows.jsonl", faults={"step_seconds": 0.1, **faults})
    (folder / "job.json").write_text(json.dumps(grpo_job("rows.jsonl", steps=steps)))
    return str(up.json("submit", folder / "job.json")["id"])


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def umask_of(pid: int) -> str:
    found = re.search(r"^Umask:\s*(\d+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def writes_privately(pid: int) -> bool:
    return umask_of(pid) == "0077"


def test_the_first_start_writes_a_key_that_later_starts_keep(restarted: Restarted) -> None:
    assert restarted.keys[0].startswith("grpo_")
    assert restarted.keys[0] == restarted.keys[1]
    assert not list(restarted.up.home.glob("*.new"))


def test_the_home_and_its_files_become_private(restarted: Restarted) -> None:
    private = {"home": 0o700, "api_key": 0o600, "grpo.db": 0o600, "artifacts": 0o700, "artifact": 0o600}
    assert restarted.modes == private
    assert restarted.umasks == ["0077", "0077"]


def test_a_job_that_a_stop_interrupted_is_resumed_by_the_next_start(restarted: Restarted) -> None:
    up, job_id = restarted.up, restarted.interrupted
    wait_until(lambda: up.job(job_id)["attempt"] == 2, 120)
    wait_until(lambda: any("resumed from step" in text for text in messages_of(up, job_id)), 120)
    assert up.job(job_id)["progress"]["step"] > 0
    up.json("cancel", job_id)


def test_the_terminal_shows_jobs_and_problems_and_the_log_file_everything(restarted: Restarted) -> None:
    up, job_id = restarted.up, restarted.interrupted
    if up.job(job_id)["status"] != "cancelled":
        up.json("cancel", job_id)
    log = Path(up.ready["log_file"])
    assert log == up.home / "logs" / "up.jsonl"
    assert mode_of(log) == 0o600

    def terminal() -> str:
        return (up.home / "up.log").read_text()

    wait_until(lambda: f"{job_id} ended state=cancelled" in terminal(), 120)
    assert f"{job_id} started model=tiny" in terminal()
    assert "request_id" not in terminal()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {"path", "request_id", "status"} <= {name for line in lines for name in line}
    requeued = [line for line in lines if line["event"] == "job requeued" and line["job"] == job_id]
    assert len(requeued) == 1
    assert "grpo up" in [line.get("logger") for line in lines]


def messages_of(up: Up, job_id: str) -> list[str]:
    return [event["message"] for event in up.json("events", job_id, "--limit", "10000")]


def test_a_second_grpo_up_on_the_same_home_is_refused(restarted: Restarted) -> None:
    up = restarted.up
    done = call_grpo("up", "--port", "0", environment=up.environment)
    assert done.returncode == 1
    found = re.search(rf"`grpo up` already runs on {re.escape(str(up.home))} \(pid (\d+)\)", done.stderr)
    assert found is not None
    assert is_alive(int(found[1]))
    assert is_ok(f"{up.url}/livez")


def test_a_job_and_who_watches_it_survive_a_killed_api_and_a_killed_worker(
    restarted: Restarted, tmp_path: Path
) -> None:
    up, begun, log = restarted.up, "startup complete", restarted.up.home / "logs" / "up.jsonl"
    num_begun = log.read_text().count(begun)
    if up.job(restarted.interrupted)["status"] != "cancelled":
        up.json("cancel", restarted.interrupted)  # the worker runs one job at a time
    job_id = submit(up, tmp_path, steps=40)
    wait_until(lambda: up.job(job_id)["progress"]["step"] > 10, 120)
    os.kill(up.ready["api_pid"], signal.SIGKILL)
    os.kill(up.ready["worker_pid"], signal.SIGKILL)
    wait_until(lambda: not is_alive(up.ready["worker_pid"]))
    with closing_database(up.home) as database:
        expire_leases(database)
    # the killed process represents the API's, which may answer for another moment
    wait_until(lambda: log.read_text().count(begun) > num_begun and is_ok(f"{up.url}/livez"), 120)
    watched = up.grpo("watch", job_id, "--json")
    assert watched.returncode == 0, watched.stderr
    events = [json.loads(line) for line in watched.stdout.splitlines()]
    metrics = [event["data"] for event in events if event["event"] == "metrics" and "reward" in event["data"]]
    assert [data["step"] for data in metrics] == list(range(1, 41))
    assert [int(event["id"]) for event in events] == list(range(1, len(events) + 1))
    assert up.job(job_id)["attempt"] == 2, "of the restarted worker"
    assert "API process ended with -9; restarting in 0.5 s" in (up.home / "up.log").read_text()


def test_a_second_signal_kills_an_engine_that_does_not_stop(tmp_path: Path) -> None:
    home = tmp_path / "home"
    make_model(home / "models" / "tiny", hidden=32, layers=1)
    with grpo_up(home) as up:
        job_id = submit(up, tmp_path, steps=5000, ignore_sigterm=True)
        wait_until(lambda: up.job(job_id)["progress"]["step"] > 0, 120)
        up.process.send_signal(signal.SIGINT)
        wait_until(lambda: "a second signal kills it" in (home / "up.log").read_text(), 120)
        assert up.process.poll() is None
        assert up.stop(signal.SIGINT) == 0
    wait_until(lambda: processes_of(home) == [], 120)


def test_the_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    with grpo_up(tmp_path / "home", python=sys.executable) as up:
        assert up.stop(signal.SIGKILL) == -signal.SIGKILL
        wait_until(lambda: processes_of(up.home) == [], 120)


def test_a_service_whose_terminal_has_closed_restarts_its_api_and_stops_cleanly(tmp_path: Path) -> None:
    env = environment(tmp_path / "home")
    command = [*GRPO, "up", "--port", "0", "--json"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        process.stdout.close()
        os.kill(ready["api_pid"], signal.SIGKILL)
        wait_until(lambda: not is_ok(f"{ready['url']}/livez"), 120)
        wait_until(lambda: is_ok(f"{ready['url']}/livez"), 120)
        process.send_signal(signal.SIGHUP)
    assert process.returncode == 0
    assert processes_of(tmp_path / "home") == []


def test_a_process_started_alone_writes_private_files(tmp_path: Path) -> None:
    env = environment(tmp_path / "home")
    (tmp_path / "home").mkdir()
    assert run_grpo("migrate", environment=env).returncode == 0
    assert mode_of(tmp_path / "home" / "grpo.db") == 0o600
    for command in (["serve", "--port", str(free_port())], ["worker"]):
        process = subprocess.Popen(
            [*GRPO, *command],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            umask=0o022,
            preexec_fn=dies_with_this_process(signal.SIGKILL),
        )
        try:
            wait_until(functools.partial(writes_privately, process.pid), 120)
        finally:
            process.kill()
            process.wait()


def test_a_used_port_is_a_clear_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = call_grpo("up", "--port", str(port), environment=environment(tmp_path / "home"))
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: cannot listen on 127.0.0.1:{port}: Address already in use")
    assert "choose another with --port" in done.stderr


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
def test_a_host_that_is_not_this_machine_is_a_clear_error(tmp_path: Path, host: str) -> None:
    done = call_grpo("up", "--host", host, environment=environment(tmp_path / "home"))
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: cannot listen on {host}:8000: ")
    assert "--host takes an address of this machine" in done.stderr


@pytest.mark.parametrize(("home", "reason"), [("/proc/home", "No such file"), ("/dev/null", "File exists")])
def test_a_home_that_cannot_be_written_to_is_a_clear_error(home: str, reason: str) -> None:
    done = call_grpo("up", environment=environment(Path(home)))
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: cannot write to {home}: {reason}")
    assert "param=GRPO_HOME" in done.stderr


@on_sqlite
def test_the_failed_checks_are_why_a_start_does_not_become_ready(settings: Settings) -> None:
    greedy = settings.model_copy(update={"min_free_disk_bytes": 1 << 60})
    with serving(create_app(greedy)) as url:
        reason = unready_reason(url)
    assert reason is not None
    full = rf"\d+ MiB are free, {1 << 40} MiB are required"
    assert re.fullmatch(f"storage: {full}, disk: {full}", reason)
    assert unready_reason("http://127.0.0.1:9") == "no answer"


def test_grpo_up_refuses_production_settings(tmp_path: Path) -> None:
    env = environment(tmp_path, GRPO_MODE="production")
    refused = call_grpo("up", environment=env)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("Error: production needs PostgreSQL: set GRPO_DATABASE_URL")
    env |= {
        "GRPO_DATABASE_URL": "postgresql://user@127.0.0.1/none",
        "GRPO_BROKER_URL": "redis://127.0.0.1:9",
    }
    refused = call_grpo("up", environment=env)
    assert refused.stderr.startswith("Error: GRPO_MODE is production")
