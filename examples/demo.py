"""`make demo`: supervised, then GRPO, over HTTP on this machine.

Makes a small random model and sums that it cannot do, starts the embedded service with `grpo up`, runs the
two job files of `examples/jobs`, downloads the adapters, loads them with PEFT and evaluates
them on held-out sums. Exit code 0 if GRPO increased the accuracy by at least 20 points. Leaves no process and
no file.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.utils import logging

from examples.arithmetic import Row, make_rows, supervised_rows, write_jsonl
from examples.chart import chart
from examples.decoding import accuracy, answers
from examples.tiny_model import make_model
from grpo_engine.process.parent_death import dies_with_this_process
from service.cli.commands.download import fetch_adapter, unpack
from service.cli.commands.jobs import read_job, with_uploads
from service.cli.commands.watch import watch_job
from service.cli.http.client import JOBS, Client
from service.cli.terminal.errors import CommandError

JOB_FILES = Path(__file__).parent / "jobs"
NUM_TRAIN, NUM_HELD_OUT = 12_800, 140
FORGOTTEN_CARRIES = 0.65
"""Share of carries that the demonstrations forget. SFT imitates this mistake, and the reward corrects it."""
NEEDED_POINTS = 20.0
STOP_SECONDS = 60


@dataclass(frozen=True)
class Task:
    """The folder of the sums, and the held-out ones."""

    folder: Path
    held_out: list[Row]
    seed: int

    @classmethod
    def make(cls, folder: Path, seed: int) -> Task:
        train, held_out = make_rows(NUM_TRAIN, NUM_HELD_OUT, seed=seed)
        folder.mkdir()
        write_jsonl(folder / "arithmetic.jsonl", train)
        write_jsonl(folder / "arithmetic_held_out.jsonl", held_out)
        demonstrated = supervised_rows(train, forgotten_carries=FORGOTTEN_CARRIES, seed=seed)
        write_jsonl(folder / "arithmetic_supervised.jsonl", demonstrated)
        return cls(folder, held_out, seed)


class JobFailed(Exception):
    """A job of the demo did not succeed."""


@contextmanager
def embedded(home: Path, **variables: str) -> Iterator[Client]:
    """`grpo up` on `home`, and its client; the service is stopped at the end of the block.

    `variables`: added to its environment.
    """
    log = home / "service.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "service.cli", "up", "--port", "0", "--json"],
            # one thread per process: more threads than cores would only wait for each other
            env={
                "OMP_NUM_THREADS": "1",
                **os.environ,
                "GRPO_HOME": str(home),
                "GRPO_MODE": "embedded",
                **variables,
            },
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            preexec_fn=dies_with_this_process(signal.SIGTERM),
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise CommandError(f"the service did not start:\n{log.read_text()}")
        ready = json.loads(line)
        with Client(ready["url"], Path(ready["key_file"]).read_text().strip()) as client:
            yield client
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Drain the service with SIGTERM; kill it and its children if it does not end in time."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def run_job(client: Client, task: Task, job_file: str, model: str) -> dict[str, Any]:
    """Submit a job file with the task's rows and show its progress to the end. Raises JobFailed."""
    body = read_job(JOB_FILES / job_file) | {"model": model, "seed": task.seed}
    body |= {name: Path(value).name for name, value in body.items() if name.endswith("_file")}
    body = with_uploads(client, body, task.folder)
    job = client.create(JOBS, body)
    job = watch_job(client, job["id"])
    if job["status"] != "succeeded":
        raise JobFailed(f"{job['id']} {job['status']}")
    return job


def rewards(client: Client, job: dict[str, Any]) -> list[float]:
    """Mean reward of each training step."""
    rows = client.get(f"{JOBS}/{job['id']}/metrics", names="reward", limit=10_000)["data"]
    return [row["reward"] for row in rows if "reward" in row]


def run_demo(home: Path, seed: int) -> bool:
    """Run the demonstration in a new folder. Returns whether GRPO increased the accuracy enough."""
    base = make_model(home / "models" / "tiny", seed=seed)
    task = Task.make(home / "rows", seed)
    with embedded(home) as client:
        heading("Supervised: a random model imitates sums in which two of three carries are forgotten")
        supervised = run_job(client, task, "supervised.json", "tiny")
        heading("GRPO: starts from that model, samples eight answers to each sum and rewards the right ones")
        reinforced = run_job(client, task, "arithmetic_grpo.json", supervised["fine_tuned_model"])
        curve = rewards(client, reinforced)
        model = unpack(fetch_adapter(client, supervised["id"], home / "downloads")[0])
        adapter = unpack(fetch_adapter(client, reinforced["id"], home / "downloads")[0])
    heading(f"{NUM_HELD_OUT} sums that neither job has seen, answered through PEFT")
    tokens = reinforced["method"]["reinforcement"]["hyperparameters"]["max_completion_tokens"]
    scores = {
        "base": accuracy(answers(base, task.held_out, max_tokens=tokens), task.held_out),
        "after SFT": accuracy(answers(model, task.held_out, max_tokens=tokens), task.held_out),
        "after GRPO": accuracy(
            answers(model, task.held_out, adapter=adapter, max_tokens=tokens), task.held_out
        ),
    }
    for name, share in scores.items():
        print(f"{name:>11}  {100 * share:5.1f} %  {'█' * round(40 * share)}")
    heading("Reward of the GRPO steps")
    print(chart(curve))
    lifted = 100 * (scores["after GRPO"] - scores["after SFT"])
    print(f"\nGRPO increased the accuracy by {lifted:.1f} points (at least {NEEDED_POINTS:g} required).")
    return lifted >= NEEDED_POINTS


def heading(text: str) -> None:
    print(f"\n── {text}", flush=True)


def main() -> int:
    """Exit code: 0 improved enough, 1 not, 2 a job or the service failed, 130 interrupted."""
    parser = argparse.ArgumentParser(description="Supervised, then GRPO, over HTTP on this machine.")
    parser.add_argument("--seed", type=int, default=1, help="of the weights, the rows and the jobs")
    options = parser.parse_args()
    started = time.monotonic()
    logging.disable_progress_bar()
    # SIGTERM of the demo also ends the service
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="grpo-demo-", ignore_cleanup_errors=True) as folder:
        try:
            lifted = run_demo(Path(folder), options.seed)
        except KeyboardInterrupt:
            return 130
        except (CommandError, JobFailed) as error:
            print(f"demo: {error}", file=sys.stderr)
            return 2
    print(f"{time.monotonic() - started:.0f} seconds.")
    return 0 if lifted else 1


if __name__ == "__main__":
    sys.exit(main())
