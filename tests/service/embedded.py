"""`grpo up` as a process of its own in a temporary home, and the `grpo` command against it.

Also what the end-to-end tests start from: a model folder, rows, job bodies.
"""

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from examples.arithmetic import make_rows, write_jsonl
from grpo_engine.process.parent_death import dies_with_this_process
from service.cli.commands.watch import watch_job
from service.cli.http.client import JOBS, Client
from service.cli.main import run
from tests.support.forking import client as forking

ROOT = Path(__file__).parents[2]
CLI = ("-m", "service.cli")
GRPO = [sys.executable, *CLI]
START_SECONDS = 120


def run_shell(script: str, folder: Path, environment: dict[str, str]) -> str:
    """Run a guide's block in `folder` up to its first failing line."""
    done = subprocess.run(
        ["bash", "-euc", script],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment(home: Path, **more: str) -> dict[str, str]:
    """This process's environment without its own GRPO settings; the fake engine trains."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GRPO_")}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "OMP_NUM_THREADS": "1",
        "GRPO_HOME": str(home),
        "GRPO_ENGINE_MODULE": "tests.support.fake_engine",
        **more,
    }


@dataclass
class Up:
    """A running `grpo up`."""

    process: subprocess.Popen[str]
    home: Path
    ready: dict[str, Any]
    environment: dict[str, str] = field(repr=False)

    @property
    def url(self) -> str:
        return str(self.ready["url"])

    def grpo(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """The `grpo` command as its user runs it: configured only by GRPO_HOME and GRPO_URL."""
        return call_grpo(*arguments, environment={**self.environment, "GRPO_URL": self.url})

    def json(self, *arguments: str | Path) -> Any:
        """Its one JSON document."""
        done = self.grpo(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def job(self, job_id: str) -> dict[str, Any]:
        """The job as the API has it, without a process for it."""
        return self.client.get(f"{JOBS}/{job_id}")

    @cached_property
    def client(self) -> Client:
        """As the owner of the key that the first start wrote."""
        return Client(self.url, Path(self.ready["key_file"]).read_text().strip())

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(START_SECONDS)


def run_grpo(*arguments: str | Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own."""
    command = [*GRPO, *(str(argument) for argument in arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


class _OfThisThread(io.StringIO):
    """Keeps what its own thread writes: a service in this process logs in others."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def write(self, text: str) -> int:
        return super().write(text) if threading.get_ident() == self._thread else len(text)


def call_grpo(*arguments: str | Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The command inside this process, which spares each call the import of its packages."""
    given = [str(argument) for argument in arguments]
    output, errors = io.StringIO(), _OfThisThread()
    umask = os.umask(0o077)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output), redirect_stderr(errors):
        for name in {*os.environ} - {*environment}:
            patch.delenv(name)
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["grpo", *given])
        with pytest.raises(SystemExit) as ended:
            run()
    os.umask(umask)
    code = ended.value.code if isinstance(ended.value.code, int) else 0
    return subprocess.CompletedProcess(given, code, output.getvalue(), errors.getvalue())


@contextmanager
def grpo_up(home: Path, *, python: Path | str = "", **more: str) -> Iterator[Up]:
    """Starts `grpo up` on a free port and ends it; its log is shown where it does not start.

    Its processes are forked (`tests.support.forking`), unless `python` is another program. So are its
    engines, unless `more` names another GRPO_ENGINE_PYTHON.
    """
    home.mkdir(parents=True, exist_ok=True)
    if "GRPO_ENGINE_PYTHON" not in more:
        more["GRPO_ENGINE_PYTHON"] = str(forking.engine_python())
    env = environment(home, **more)
    with (home / "up.log").open("w") as log:
        process = subprocess.Popen(
            [python or forking.embedded_python(), *CLI, "up", "--port", "0", "--json"],
            env=env,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            preexec_fn=dies_with_this_process(signal.SIGTERM),
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, (home / "up.log").read_text()
    up = Up(process, home, json.loads(line), env)
    try:
        yield up
    finally:
        if "client" in vars(up):
            up.client.close()
        if process.poll() is None:
            process.terminate()
            process.wait(START_SECONDS)
        process.stdout.close()


def write_rows(path: Path, *, num_rows: int = 8, faults: dict[str, Any] | None = None) -> Path:
    """Sums with answers; `faults` are the fake engine's, for every attempt."""
    rows, _ = make_rows(num_rows, 1, seed=3)
    if faults:
        rows[0] = {**rows[0], "faults": {"*": faults}}
    return write_jsonl(path, rows)


def grpo_job(training_file: str, *, steps: int = 10, model: str = "tiny") -> dict[str, Any]:
    """A small reinforcement job."""
    hyperparameters = {"group_size": 4, "prompts_per_step": 4, "n_steps": steps, "checkpoint_interval": 5}
    grader = {"type": "numeric", "reference": "{{item.answer}}"}
    return {
        "model": model,
        "training_file": training_file,
        "seed": 5,
        "method": {
            "type": "reinforcement",
            "reinforcement": {"grader": grader, "hyperparameters": hyperparameters},
        },
    }


def processes_of(home: Path) -> list[int]:
    """Pids of all living processes that were started with this GRPO_HOME: service, engines, commands."""
    wanted = f"GRPO_HOME={home}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def succeed(client: Client, body: dict[str, Any]) -> dict[str, Any]:
    """The job of this request, after its success."""
    job = watch_job(client, client.create(JOBS, body)["id"])
    assert job["status"] == "succeeded", job["failure"]
    return job


def engine_python(folder: Path, mark: str) -> Path:
    """Starts engines as real processes and, once the file `mark` is in the folder, forks them."""
    program, forked = folder / "engine", forking.engine_python()
    program.write_text(
        f'#!/bin/sh\n[ -e {folder}/{mark} ] && exec {forked} "$@"\nexec {sys.executable} "$@"\n'
    )
    program.chmod(0o755)
    return program
