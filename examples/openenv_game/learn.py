"""`python -m examples.openenv_game.learn`: a small model learns a guessing game over OpenEnv.

Starts the game's server. A random model first imitates demonstrations, two thirds of whose guesses are weak.
Then the job of `job.json` plays games, four guesses each, and the server rewards those that find the digit.
Exit code 0 if the held-out reward rose by at least 0.15, with an interval above 0. Leaves no process or file.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from examples.arithmetic import Row, write_jsonl
from examples.demo import embedded, heading, stop
from examples.openenv_game.game import FIRST, RULES, Game
from examples.reasoning_gym.learn import run_job
from examples.tiny_model import make_model
from grpo_engine.process.parent_death import dies_with_this_process
from service.cli.commands.jobs import read_job
from service.cli.operate.up import usable_port

FOLDER = Path(__file__).parent
PYTHON = FOLDER.parents[1] / ".venv-openenv/bin/python"
NUM_GAMES, NUM_HELD_OUT, NUM_DEMONSTRATIONS = 64, 100, 1000
WEAK = 0.65
"""Share of the demonstrated guesses that are only one step from the last one."""
NEEDED_RISE = 0.15
START_SECONDS = 60.0


def games(count: int) -> list[Row]:
    """Rows of games; the engine gives each its seed."""
    message = {"role": "user", "content": RULES}
    return [{"messages": [message], "environment": "guess"} for _ in range(count)]


def demonstrations(count: int, seed: int = 2) -> list[Row]:
    """A row for each guess of `count` games: the game so far, and the guess as the assistant's turn."""
    drawn, rows = random.Random(seed), list[Row]()
    for _ in range(count):
        game, messages = Game(drawn.randrange(10)), [{"role": "user", "content": f"{RULES}\n\n{FIRST}"}]
        last, hint = -1, "higher"
        while not game.is_over:
            step = 1 if hint == "higher" else -1
            last = last + step if drawn.random() < WEAK else game.middle
            messages.append({"role": "assistant", "content": str(last)})
            rows.append({"messages": [*messages]})
            hint = game.guess(str(last))
            messages.append({"role": "user", "content": hint})
    return rows


@contextmanager
def served(python: Path) -> Iterator[str]:
    """The game's server, run by `python`; its URL. Raises RuntimeError if it does not start."""
    port = usable_port("127.0.0.1", 0)
    process = subprocess.Popen(
        [str(python), "-m", "examples.openenv_game.server", str(port)],
        cwd=FOLDER.parents[1],
        preexec_fn=dies_with_this_process(signal.SIGTERM),
    )
    try:
        _await_health(f"http://127.0.0.1:{port}", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        stop(process)


def _await_health(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise RuntimeError("the game's server did not start")


def learn(home: Path, python: Path = PYTHON, num_steps: tuple[int, int] | None = None) -> dict[str, Any]:
    """Run both jobs in a new folder; returns the evaluations of the second.

    `num_steps`: replaces the number of steps of each job, for a trial in which nothing is learned. The
    first job needs about 40: with fewer, the model does not end its turns, so it never acts.
    """
    make_model(home / "models" / "tiny", layers=2)
    write_jsonl(home / "games.jsonl", games(NUM_GAMES))
    write_jsonl(home / "held_out.jsonl", games(NUM_HELD_OUT))
    rows = write_jsonl(home / "demonstrations.jsonl", demonstrations(NUM_DEMONSTRATIONS))
    body, imitation = read_job(FOLDER / "job.json"), read_job(FOLDER / "supervised.json")
    for job, steps in zip((imitation, body), num_steps or (), strict=False):
        job["method"][job["method"]["type"]]["hyperparameters"]["n_steps"] = steps
    with served(python) as url, embedded(home, GRPO_ALLOWED_HOSTS=url.removeprefix("http://")) as client:
        body["method"]["reinforcement"]["environments"]["guess"]["url"] = url
        heading("Supervised: a random model imitates games in which two of three guesses are weak")
        supervised = run_job(client, imitation | {"training_file": rows.name}, home)
        heading("GRPO: the game rewards the digits that are found with four guesses")
        job = run_job(client, body | {"model": supervised["fine_tuned_model"]}, home)
    return dict(job["eval"])


def main() -> int:
    parser = argparse.ArgumentParser(description="A small model learns a guessing game over OpenEnv.")
    parser.add_argument("--python", type=Path, default=PYTHON, help="of an environment with `openenv`")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="grpo-game-", ignore_cleanup_errors=True) as folder:
        found = learn(Path(folder), options.python)
    before, after, verdict = (found[name] for name in ("baseline", "last", "verdict"))
    print(f"\nFound in {NUM_HELD_OUT} games: {before['reward']:.0%} before, {after['reward']:.0%} after:")
    print(verdict["text"])
    return 0 if verdict["low"] > 0 and verdict["difference"] >= NEEDED_RISE else 1


if __name__ == "__main__":
    sys.exit(main())
