"""`python -m examples.reasoning_gym.learn`: a small model learns to spell words backward, over HTTP.

A random model first imitates demonstrations, two thirds of which spell the word forward. Then the job of
`job.json`, whose dataset is the task's name, rewards what the task's own scorer finds right. Exit code 0 if
the held-out reward rose by at least 0.15. Needs `pip install 'grpo-service[reasoning-gym]'`; leaves no file.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from examples.arithmetic import Row, write_jsonl
from examples.demo import JobFailed, embedded, heading
from examples.tiny_model import make_model
from service.cli.commands.jobs import read_job, with_uploads
from service.cli.commands.watch import watch_job
from service.cli.http.client import JOBS, Client
from service.suites.child_process import generate
from service.suites.models import ReasoningGymDataset

FOLDER = Path(__file__).parent
FORWARD = 0.65
"""Share of the demonstrations that spell the word forward."""
NEEDED_RISE = 0.15


def demonstrations(folder: Path, dataset: dict[str, Any], seed: int = 2) -> Path:
    """Rows of the same task with other words, each with an assistant's turn."""
    drawn = random.Random(seed)
    with tempfile.TemporaryFile() as rows:
        generate(ReasoningGymDataset.model_validate({**dataset, "seed": seed}), rows, 2**24)
        rows.seek(0)
        return write_jsonl(folder / "spelling.jsonl", [_demonstrated(json.loads(row), drawn) for row in rows])


def _demonstrated(row: Row, drawn: random.Random) -> Row:
    answer = row["answer"][::-1] if drawn.random() < FORWARD else row["answer"]
    return {"messages": [*row["messages"], {"role": "assistant", "content": answer}]}


def run_job(client: Client, body: dict[str, Any], folder: Path = FOLDER) -> dict[str, Any]:
    """Submit a job and show its progress to the end. Raises JobFailed."""
    job = watch_job(client, client.create(JOBS, with_uploads(client, body, folder))["id"])
    if job["status"] != "succeeded":
        raise JobFailed(f"{job['id']} {job['status']}")
    return job


def learn(home: Path, num_steps: int | None = None) -> tuple[float, float]:
    """Run both jobs in a new folder; returns the held-out reward before and after the second.

    `num_steps`: replaces the number of steps of each job, for a trial in which nothing is learned.
    """
    make_model(home / "models" / "tiny", layers=2)
    body = read_job(FOLDER / "job.json")
    rows = demonstrations(home, body["dataset"])
    with embedded(home) as client:
        heading("Supervised: a random model imitates spelling, two words of three forward")
        imitation = read_job(FOLDER / "supervised.json") | {"training_file": rows.name}
        for job in (imitation, body) if num_steps else ():
            job["method"][job["method"]["type"]]["hyperparameters"]["n_steps"] = num_steps
        supervised = run_job(client, imitation, home)
        heading("GRPO: Reasoning Gym's scorer rewards words that are spelled backward")
        job = run_job(client, body | {"model": supervised["fine_tuned_model"]})
    return job["eval"]["baseline"]["reward"], job["eval"]["last"]["reward"]


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="grpo-gym-", ignore_cleanup_errors=True) as folder:
        before, after = learn(Path(folder))
    print(f"\nReward on 100 unseen words: {before:.2f} before, {after:.2f} after.")
    return 0 if after - before >= NEEDED_RISE else 1


if __name__ == "__main__":
    sys.exit(main())
