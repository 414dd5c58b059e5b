"""A compose deployment without a GPU, under its own project name, and its API."""

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.containers.base_images import ROOT
from bench.containers.engine import run
from service.cli.http.client import JOBS, Client
from tests.ports import free_port
from tests.support.servers import wait_until

PROJECT = "grpo-check"
FILES = (
    ROOT / "docker" / "compose.yaml",
    ROOT / "docker" / "compose.cpu.yaml",
    Path(__file__).with_name("two_ranks.yaml"),
)
COMPOSE = (
    *("docker", "compose", "--project-name", PROJECT),
    *(word for path in FILES for word in ("--file", str(path))),
)
GRADER = """
def grade(sample, item):
    return len(set(sample["output_text"])) / 10
"""


@dataclass(frozen=True)
class Deployment:
    """A running deployment. `environment`: docker's variables and those of the compose file."""

    environment: Mapping[str, str]
    port: int

    @classmethod
    def of(cls, models: Path, docker: Mapping[str, str]) -> "Deployment":
        port = free_port()
        own = {"POSTGRES_PASSWORD": "check1", "REDIS_PASSWORD": "check2", "GRPO_MODELS_DIR": str(models)}
        return cls({**docker, **own, "GRPO_PORT": str(port)}, port)

    def compose(self, *arguments: str) -> str:
        return run(self.environment, *COMPOSE, *arguments)

    def shell(self, script: str, **variables: str) -> None:
        """Run a script of bash in which `compose` is this deployment's `docker compose`."""
        function = f'compose() {{ {shlex.join(COMPOSE)} "$@"; }}\n'
        run({**self.environment, **variables}, "bash", "-euc", function + script)

    def docker(self, *arguments: str) -> str:
        return run(self.environment, "docker", *arguments)

    def containers(self, service: str) -> list[str]:
        return self.compose("ps", "--quiet", service).split()

    def in_container(self, container: str, *command: str) -> int:
        """Exit status of the command."""
        words = ["docker", "exec", container, *command]
        return subprocess.run(words, env=self.environment, capture_output=True).returncode

    def start(self, *options: str) -> None:
        """Start all services and wait until those with a health check are healthy."""
        self.compose("up", "--detach", "--no-build", *options)
        for service in ("postgres", "redis", "api", "worker"):
            for container in self.containers(service):
                wait_until(partial(self._is_healthy, container), 180, f"{service} is healthy")

    def kill(self, container: str) -> None:
        """Kill all processes of a container. Its restart policy applies, unlike after `docker kill`."""
        os.kill(int(self.docker("inspect", "--format", "{{.State.Pid}}", container)), signal.SIGKILL)

    def user_of(self, container: str) -> int:
        """User id of a container's first process."""
        status = self.docker("exec", container, "cat", "/proc/1/status")
        return int(re.findall(r"^Uid:\s+(\d+)", status, re.MULTILINE)[0])

    def client(self) -> Client:
        """A client with a new key."""
        create = ("grpo", "keys", "create", "--tenant", "check", "--json")
        created = self.compose("run", "--rm", "migrate", *create)
        return Client(f"http://127.0.0.1:{self.port}", json.loads(created)["key"])

    def _is_healthy(self, container: str) -> bool:
        return self.docker("inspect", "--format", "{{.State.Health.Status}}", container) == "healthy\n"


def submit(client: Client, file_id: str, num_steps: int, num_ranks: int = 1) -> str:
    """Id of a new job with a Python grader, which runs in the sandbox."""
    hyperparameters = {"group_size": 8, "n_steps": num_steps, "max_completion_tokens": 8}
    grader = {"type": "python", "name": "variety", "source": GRADER}
    method = {"grader": grader, "hyperparameters": {**hyperparameters, "checkpoint_interval": 5}}
    body = {
        "model": "tiny",
        "training_file": file_id,
        "method": {"type": "reinforcement", "reinforcement": method},
        "resources": {"gpus": num_ranks},
    }
    return str(client.create(JOBS, body)["id"])


def finished(client: Client, job_id: str) -> dict[str, Any]:
    """Wait until the job has succeeded, and return it. Raises AssertionError if it has failed."""
    job = client.awaited(f"{JOBS}/{job_id}", client.get(f"{JOBS}/{job_id}"), lambda _job: None)
    assert job["status"] == "succeeded", job["failure"]
    return job
