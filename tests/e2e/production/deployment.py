"""The production deployment as processes: the commands of `docker/compose.yaml` on this machine.

Real PostgreSQL and Redis from `tests.support.servers`. Only the code is shared with the embedded mode.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from grpo_engine.process.parent_death import dies_with_this_process
from service.cli.http.client import Client
from tests.ports import free_port
from tests.service.embedded import ROOT, call_grpo, environment
from tests.support.api_process import Process
from tests.support.forking import client as forking
from tests.support.servers import Postgres, Redis, answer_of, wait_until

SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
END_SECONDS = 60


@dataclass
class Production:
    """The deployment's settings, and its running processes by their names in compose."""

    home: Path
    port: int
    environment: dict[str, str] = field(repr=False)
    running: dict[str, Process] = field(default_factory=dict)
    log_starts: dict[str, int] = field(default_factory=dict)
    """Name → size of its log when it was started last."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, name: str, alias: str = "") -> None:
        """The service's command from compose, on this machine's port and interpreter.

        `alias`: the name of a second one.
        """
        here = {"--host=0.0.0.0": "--host=127.0.0.1", "--port=8000": f"--port={self.port}"}
        command = [here.get(word, word) for word in SERVICES[name]["command"]]
        with self.log(alias or name).open("ab") as log:
            self.log_starts[alias or name] = os.fstat(log.fileno()).st_size
            self.running[alias or name] = self._start(command, log)

    def _start(self, command: list[str], log: BinaryIO) -> Process:
        program, *arguments = command
        return subprocess.Popen(
            [str(Path(sys.executable).with_name(program)), *arguments],
            env=self.environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=dies_with_this_process(signal.SIGKILL),
        )

    def log(self, name: str) -> Path:
        return self.home / f"{name}.log"

    def output(self, name: str) -> str:
        """What it has logged since its last start."""
        return self.log(name).read_bytes()[self.log_starts[name] :].decode()

    def stop(self, name: str) -> int:
        """Send SIGTERM, like `docker stop`. Returns the exit code."""
        process = self.running.pop(name)
        process.terminate()
        try:
            return process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise

    def kill(self, name: str) -> None:
        """Send SIGKILL to the service and its children, as if the machine were lost."""
        process = self.running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop_all(self) -> None:
        for name in list(self.running):
            self.stop(name)

    def ready(self) -> dict[str, Any] | None:
        """Wait for status 200 of `/readyz`. Returns its body."""
        answer = answer_of(f"{self.url}/readyz")
        return dict(answer.json()) if answer is not None and answer.status_code == 200 else None

    def key(self) -> str:
        """Create an API key of tenant `acme`."""
        created = call_grpo("keys", "create", "--tenant", "acme", environment=self.environment)
        assert created.returncode == 0, created.stderr
        return created.stdout.strip()

    def client(self) -> Client:
        """A client with a new key."""
        return Client(self.url, self.key())


class ForkedProduction(Production):
    """Its processes are forked from ones that have imported their modules; their helpers are not."""

    def _start(self, command: list[str], log: BinaryIO) -> Process:
        module = command[2:] if command[:2] == ["python", "-m"] else command
        return forking.start(module, self.environment, log.fileno(), own_session=True)


@contextmanager
def production(
    home: Path,
    model: Path,
    postgres_url: str,
    redis: Redis,
    kind: type[Production] = Production,
    /,
    **more: str,
) -> Iterator[Production]:
    """A migrated deployment with running API, worker and maintenance; all end with the block."""
    home.mkdir(parents=True)
    catalogue = home / "catalogue.json"
    catalogue.write_text(json.dumps({"tiny": {"path": str(model)}}))
    usual = {
        "GRPO_MODE": "production",
        "GRPO_DATABASE_URL": postgres_url,
        "GRPO_BROKER_URL": redis.new_url(),
        "GRPO_STORAGE_URL": f"file://{home / 'store'}",
        "GRPO_MODELS": str(catalogue),
    }
    env = environment(home, **(usual | more))
    migrated = call_grpo(*SERVICES["migrate"]["command"][1:], environment=env)
    assert migrated.returncode == 0, migrated.stderr
    deployment = kind(home, free_port(), env)
    with ExitStack() as stack:
        stack.callback(deployment.stop_all)
        for name in ("api", "worker", "maintenance"):
            deployment.start(name)
        wait_until(deployment.ready, 60, what="the API is ready")
        yield deployment


@contextmanager
def empty_database(server: Postgres, name: str) -> Iterator[str]:
    """URL of a new database without tables."""
    server.execute(f"CREATE DATABASE {name}")
    yield server.url_of(name)
    server.execute(f"DROP DATABASE {name} WITH (FORCE)")
