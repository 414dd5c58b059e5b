"""The engine as a child process, without a database."""

import importlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.platform.archives import pack, unpack
from tests.support.servers import wait_until
from tests.support.waiting import is_alive
from tests.worker.conftest import ROOT
from worker.launchers import local
from worker.launchers.local import EngineProcess, engine_environment
from worker.launchers.run_directory import LOCK, clean_up, run_directory


def start(program: str, folder: Path) -> EngineProcess:
    return EngineProcess([sys.executable, "-c", program], folder)


def test_wait_returns_as_soon_as_the_engine_exits(tmp_path: Path) -> None:
    engine = start("print('hello'); raise SystemExit(3)", tmp_path)
    assert engine.wait(60) == 3
    assert engine.log_tail() == ("hello",)
    engine.close()


def test_processes_started_by_the_engine_end_with_it(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)"
    )
    engine = start(program, tmp_path)
    assert engine.wait(60) == 0
    grandchild = int(engine.log_tail()[0])
    wait_until(lambda: not is_alive(grandchild), 120, "the grandchild ends")
    engine.close()


def test_sigkill_follows_sigterm_after_the_grace_period(tmp_path: Path) -> None:
    program = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'sigterm\\n'))\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(1)"
    )
    engine = start(program, tmp_path)
    wait_until(lambda: engine.log_tail() == ("ready",))
    engine.stop(grace_seconds=5)
    engine.stop(grace_seconds=5)
    assert engine.wait(60) == -signal.SIGKILL
    assert engine.log_tail() == ("ready", "sigterm")
    engine.close()


def test_a_child_that_ignores_sigterm_is_killed_even_if_its_parent_has_exited(tmp_path: Path) -> None:
    deaf = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    )
    program = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {deaf!r}], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)"
    )
    engine = start(program, tmp_path)
    (line,) = wait_until(lambda: engine.log_tail())
    os.kill(engine.pid, signal.SIGTERM)
    wait_until(lambda: not is_alive(engine.pid), 120, "the leader ends")
    assert is_alive(int(line))
    engine.stop(grace_seconds=600)
    engine.close()
    wait_until(lambda: not is_alive(int(line)), 120, "its child ends")


def test_the_log_of_a_flood_of_output_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "MAX_LOG_BYTES", 100_000)
    engine = start("for n in range(100_000): print(n)", tmp_path)
    assert engine.wait(60) == 0
    assert engine.log_tail(1) == ("99999",)
    engine.close()
    sizes = [path.stat().st_size for path in tmp_path.glob("engine.log*")]
    assert 1 <= len(sizes) <= 2  # 1 if the last piece filled it
    assert max(sizes) < 200_000


def test_an_unwritable_log_does_not_stop_the_engine(tmp_path: Path) -> None:
    (tmp_path / "engine.log").symlink_to("/dev/full")
    engine = start("for n in range(100_000): print(n)", tmp_path)
    assert engine.wait(60) == 0
    engine.close()


def test_only_allowed_variables_reach_the_engine() -> None:
    environment = {"PATH": "p", "CUDA_VISIBLE_DEVICES": "0", "GRPO_DATABASE_URL": "s", "AWS_SECRET": "s"}
    assert engine_environment(environment) == {"PATH": "p", "CUDA_VISIBLE_DEVICES": "0"}


def test_proxies_and_certificates_reach_the_engine() -> None:
    names = "HTTPS_PROXY HTTP_PROXY NO_PROXY https_proxy http_proxy no_proxy SSL_CERT_FILE REQUESTS_CA_BUNDLE"
    environment = dict.fromkeys(names.split(), "value")
    assert engine_environment(environment) == environment


def test_the_operator_s_choice_of_kernels_reaches_the_engine() -> None:
    environment = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"}
    assert engine_environment(environment) == environment


def test_the_operator_s_network_settings_reach_the_engine() -> None:
    names = ("GRPO_ENDPOINTS", "GRPO_ALLOWED_HOSTS", "GRPO_ENDPOINT_SECRET")
    environment = dict.fromkeys(names, "/value")
    assert engine_environment({**environment, "GRPO_BROKER_URL": "s"}) == environment


def test_the_operator_s_endpoints_are_found_from_the_engine_s_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert engine_environment({"GRPO_ENDPOINTS": "a.json"}) == {"GRPO_ENDPOINTS": str(tmp_path / "a.json")}


def test_an_engine_dies_with_its_worker(tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom worker.launchers.local import EngineProcess\n"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        f"print(EngineProcess(sleep, Path({str(tmp_path)!r})).pid, flush=True)\n"
        "time.sleep(600)"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    worker = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment)
    assert worker.stdout is not None
    engine = int(worker.stdout.readline())
    assert is_alive(engine)
    worker.kill()
    worker.wait()
    worker.stdout.close()
    wait_until(lambda: not is_alive(engine), 120)


def test_equal_folders_make_equal_archives(tmp_path: Path) -> None:
    for name, order in (("a", "xy"), ("b", "yx")):
        (tmp_path / name).mkdir()
        for letter in order:
            (tmp_path / name / letter).write_text(letter)
            os.utime(tmp_path / name / letter, (len(name), ord(order[0])))
        pack(tmp_path / name, tmp_path / f"{name}.tar.gz")
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()
    unpack(tmp_path / "a.tar.gz", tmp_path / "c")
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["x", "y"]


def test_a_folder_in_use_is_not_cleaned_up(tmp_path: Path) -> None:
    with run_directory(tmp_path / "job" / "1") as folder:
        clean_up(tmp_path)
        assert folder.exists()
    clean_up(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_other_users_cannot_read_a_run_directory_whatever_the_umask(tmp_path: Path) -> None:
    """Celery keeps the umask of its shell, and `config.json` contains headers with keys."""
    umask = os.umask(0o022)
    try:
        with run_directory(tmp_path / "job" / "1") as folder:
            assert folder.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(umask)


def test_a_job_folder_that_fills_during_its_removal_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def filled_first(remove: Callable[..., None]) -> Callable[..., None]:
        def call(path: Path, *arguments: Any, **options: Any) -> None:
            (path / "2").mkdir()
            remove(path, *arguments, **options)

        return call

    (tmp_path / "job" / "1").mkdir(parents=True)
    (tmp_path / "job" / "1" / LOCK).touch()
    monkeypatch.setattr(Path, "rmdir", filled_first(Path.rmdir))
    monkeypatch.setattr("shutil.rmtree", filled_first(shutil.rmtree))
    clean_up(tmp_path)
    assert (tmp_path / "job" / "2").is_dir()


def test_a_clean_up_never_removes_the_folder_of_a_starting_run(tmp_path: Path) -> None:
    done = threading.Event()

    def tidy() -> None:
        while not done.is_set():
            clean_up(tmp_path)

    tidier = threading.Thread(target=tidy)
    tidier.start()
    try:
        for fence in range(300):
            with run_directory(tmp_path / "job" / str(fence)) as folder:
                (folder / "config.json").write_text("{}")
                assert (folder / LOCK).exists()
    finally:
        done.set()
        tidier.join()


def test_celery_only_delivers_wake_ups() -> None:
    program = (
        "import json, worker.app\n"
        "names = ['task_acks_late', 'task_ignore_result', 'task_serializer', 'accept_content',\n"
        "  'worker_prefetch_multiplier', 'worker_disable_prefetch', 'worker_concurrency',\n"
        "  'broker_connection_max_retries', 'task_default_queue']\n"
        "print(json.dumps([worker.app.app.conf[name] for name in names]))"
    )
    environment = os.environ | {"GRPO_BROKER_URL": "redis://127.0.0.1:1/0", "PYTHONPATH": str(ROOT)}
    answer = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == '[false, true, "json", ["json"], 1, true, 1, null, "wake.default"]'


def test_celery_without_a_broker_names_the_alternative() -> None:
    with pytest.raises(RuntimeError, match=r"GRPO_BROKER_URL.*python -m worker"):
        importlib.import_module("worker.app")
