"""Ranks of one job: processes with torchrun's variables, started together and ended together."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from grpo_engine.process.parent_death import dies_with_this_process
from tests.ports import free_port
from tests.support.forking.client import engine_python

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 300
"""On a machine with a load of 15, two ranks took more than a minute to start."""
LAST_SECONDS = 10
"""From the first failure until the other ranks are killed: they may be about to report their own."""


class RankProcesses:
    def __init__(self, processes: list[subprocess.Popen[bytes]]) -> None:
        self.processes = processes

    def terminate(self) -> None:
        for process in self.processes:
            process.terminate()

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()

    def wait(self, seconds: float = PATIENCE_SECONDS) -> list[int]:
        """Exit status of each rank. Kills the others after the first failure, and all after `seconds`."""
        deadline = time.monotonic() + seconds
        while None in (found := [process.poll() for process in self.processes]):
            if any(found):
                deadline = min(deadline, time.monotonic() + LAST_SECONDS)
            if time.monotonic() > deadline:
                self.kill()
            time.sleep(0.01)
        return [process.returncode for process in self.processes]


@contextmanager
def started_ranks(
    commands: Sequence[Sequence[str | Path]], folders: Sequence[Path], **variables: str
) -> Iterator[RankProcesses]:
    """A rank per command, each in its folder and with these variables too. None is left afterwards."""
    common = {"WORLD_SIZE": len(commands), "LOCAL_WORLD_SIZE": len(commands), "MASTER_PORT": free_port()}
    ranks = RankProcesses([])
    try:
        for rank, (command, folder) in enumerate(zip(commands, folders, strict=True)):
            numbers = {"RANK": rank, "LOCAL_RANK": rank, **common}
            ranks.processes.append(_start(command, folder, numbers, variables))
        yield ranks
    finally:
        ranks.kill()


def engine_ranks(
    folders: Sequence[Path], config: str | Path = "config.json", run_dir: str | Path = ".", **variables: str
) -> AbstractContextManager[RankProcesses]:
    """A real engine in each folder; the paths are relative to it."""
    command = [engine_python(), "-m", "grpo_engine", "--config", config, "--run-dir", run_dir]
    return started_ranks([command] * len(folders), folders, **variables)


def _start(
    command: Sequence[str | Path], folder: Path, numbers: Mapping[str, int], variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    with (folder / f"rank-{numbers['RANK']}.log").open("wb") as log:
        return subprocess.Popen(
            command,
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo",
                "MASTER_ADDR": "127.0.0.1",
                **{name: str(number) for name, number in numbers.items()},
                **variables,
            },
            stdout=log,
            stderr=log,
            preexec_fn=dies_with_this_process(signal.SIGKILL),
        )
