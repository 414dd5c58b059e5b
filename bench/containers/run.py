"""`python -m bench.containers.run [--folder FOLDER]`: tests a deployment in containers, with failures.

`--folder` keeps engine and images (8 GB) for the next run; by default they are removed.
"""

import argparse
import json
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.containers.base_images import ROOT, provide_base_images
from bench.containers.deployment import PROJECT, Deployment, finished, submit
from bench.containers.engine import container_engine
from examples.tiny_model import make_model
from service.cli.commands.download import fetch_adapter, unpack
from service.cli.http.client import JOBS, Client
from service.cli.terminal.errors import CommandError
from tests.support.servers import wait_until

TAKEOVER_SECONDS = 600
ANSWER_SECONDS = 60
LONG_STEPS = 80


def check(folder: Path) -> Iterator[str]:
    """Yield a line for each check that passes. Raises AssertionError, RuntimeError if one fails."""
    with container_engine(folder) as docker:
        yield "a container engine runs"
        yield from provide_base_images(folder, docker)
        deployment = Deployment.of(_models(folder), docker)
        deployment.compose("build", "--quiet", "api")
        deployment.compose("build", "--quiet", "worker")
        yield "both images are built"
        try:
            yield from _check_deployment(deployment, folder)
        finally:
            deployment.compose("down", "--volumes")
        mark = f"label=com.docker.compose.project={PROJECT}"
        left = deployment.docker("volume", "ls", "--quiet", "--filter", mark)
        assert not left + deployment.docker("ps", "--all", "--quiet", "--filter", mark)
        yield "down --volumes leaves nothing"


def _check_deployment(deployment: Deployment, folder: Path) -> Iterator[str]:
    deployment.start()
    yield "all services are healthy"
    for service in ("api", "worker"):
        assert deployment.in_container(deployment.containers(service)[0], "grpo", "doctor") == 0
    yield "the doctor finds no failure in api and worker"
    for service in ("redis", "postgres", "api", "worker", "maintenance"):
        assert deployment.user_of(deployment.containers(service)[0]) != 0, service
    yield "no service runs as root"
    with deployment.client() as client:
        file_id = client.upload(ROOT / "examples/data/arithmetic.jsonl")["id"]
        job_id = submit(client, file_id, num_steps=5)
        finished(client, job_id)
        _check_adapter(client, job_id, folder)
        yield "a job with a python grader succeeds, and its adapter can be downloaded"
        _check_answer(client, job_id)
        assert deployment.in_container(deployment.containers("api")[0], "grpo", "doctor") == 0
        yield "the trained model answers from the worker's container, and the doctor reaches its server"
        finished(client, submit(client, file_id, num_steps=5, num_ranks=2))
        yield "a job with two ranks succeeds, on a private Ray cluster in the worker's container"
        yield from _check_restarts(deployment, client, file_id)
        yield from _check_two_workers(deployment, client, file_id)
        deployment.compose("down")
        deployment.start()
        assert client.get(f"{JOBS}/{job_id}")["status"] == "succeeded"
        _check_adapter(client, job_id, folder)
        yield "down and up keep the data"
        yield from _check_guide(deployment, client, job_id, folder)


def _check_restarts(deployment: Deployment, client: Client, file_id: str) -> Iterator[str]:
    job_id = submit(client, file_id, num_steps=LONG_STEPS)
    wait_until(lambda: client.get(f"{JOBS}/{job_id}")["progress"]["step"] > 10, TAKEOVER_SECONDS)
    (worker,) = deployment.containers("worker")
    deployment.kill(worker)
    wait_until(lambda: client.get(f"{JOBS}/{job_id}")["attempt"] == 2, TAKEOVER_SECONDS)
    yield "a killed worker restarts and takes over its job"
    deployment.compose("restart", "redis")
    deployment.compose("restart", "postgres")
    job = finished(client, job_id)
    assert (job["progress"]["step"], job["attempt"]) == (LONG_STEPS, 2), job
    yield "the job survives restarts of Redis and PostgreSQL"


def _check_two_workers(deployment: Deployment, client: Client, file_id: str) -> Iterator[str]:
    deployment.start("--no-recreate", "--scale", "worker=2")
    frozen, other = deployment.containers("worker")
    # stops all processes but the container's first, which does not matter
    deployment.docker("exec", frozen, "sh", "-c", "kill -STOP -1")
    health = ("python", "-m", "worker.healthcheck", "--seconds", "15")
    wait_until(lambda: deployment.in_container(frozen, *health) == 1, 120)
    assert deployment.in_container(other, *health) == 0
    finished(client, submit(client, file_id, num_steps=5))
    yield "if one of two workers is frozen, it is unhealthy and the other runs jobs"
    deployment.docker("kill", frozen)


def _check_guide(deployment: Deployment, client: Client, job_id: str, folder: Path) -> Iterator[str]:
    backup, restore, upgrade = guide_commands()
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        deployment.shell(backup, BACKUP=scratch)
        deployment.compose("down", "--volumes")
        deployment.shell(restore, BACKUP=scratch)
    deployment.start()
    _check_adapter(client, job_id, folder)
    yield "a backup can be restored into new volumes"
    deployment.shell(upgrade)
    deployment.start()
    assert client.get(f"{JOBS}/{job_id}")["status"] == "succeeded"
    yield "the commands of an upgrade work"


def guide_commands() -> list[str]:
    """The commands of docs/operate/deployment.md for Docker: backup, restore and upgrade."""
    guide = (ROOT / "docs/operate/deployment.md").read_text()
    section = guide.partition("## Backup and upgrade with Docker\n")[2].partition("\n## ")[0]
    return re.findall(r"```sh\n(.*?)```", section, re.DOTALL)


def _check_adapter(client: Client, job_id: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        archive, _ = fetch_adapter(client, job_id, Path(scratch))
        assert (unpack(archive) / "adapter_model.safetensors").is_file()


def _check_answer(client: Client, job_id: str) -> None:
    """Wait until the job's model answers; its worker must first notice that the job has ended."""
    model = client.get(f"{JOBS}/{job_id}")["fine_tuned_model"]
    messages = [{"role": "user", "content": "3+4="}]
    body = {"model": model, "messages": messages, "max_tokens": 4, "temperature": 0}

    def answers() -> bool:
        try:
            return bool(client.post("/v1/chat/completions", body)["usage"]["completion_tokens"])
        except CommandError as error:
            if error.code != "workers_training":
                raise
            return False

    wait_until(answers, ANSWER_SECONDS)


def _models(folder: Path) -> Path:
    """A folder with one small model and its catalogue."""
    models = folder / "models"
    models.mkdir(exist_ok=True)
    make_model(models / "tiny")
    (models / "catalogue.json").write_text(json.dumps({"tiny": {"path": "/models/tiny"}}))
    return models


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.containers.run", description=__doc__)
    parser.add_argument("--folder", type=Path, help="work folder (default: a temporary one)")
    given = parser.parse_args().folder
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the container engine too
    with tempfile.TemporaryDirectory(prefix="grpo-containers-") as temporary:
        folder = (given or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)  # the container's user reads the models in it
        for line in check(folder):
            print(line, flush=True)


if __name__ == "__main__":
    main()
