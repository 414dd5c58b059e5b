"""A gang: one engine run as several processes (ranks), started, stopped and ended as one.

    launch([sys.executable, "-m", "grpo_engine", "--config", …], config, run_dir)

Each rank finds the variables that `torchrun` sets, so `torchrun --nproc-per-node N -m grpo_engine …` does as
well; but torchrun's agent makes a failure of a checkpoint on SIGTERM, and exit status 1 of a crash.
The first rank writes events and checkpoints. The gang's exit status is a single engine's: 0 only if all ranks
end so; where one dies, the others are ended within seconds and its status (or signal) is the gang's.
Boundary: processes; no torch here. Left out: gangs over several machines.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Protocol

from pydantic import ValidationError

from grpo_engine.config.job import RunConfig, Runtime
from grpo_engine.contract.events import BaseEvent, Failed
from grpo_engine.files.event_log import Journal
from grpo_engine.process.devices import VARIABLE, visible_gpus
from grpo_engine.process.parent_death import end_with_parent

LAUNCHER = "GRPO_GANG_LAUNCHER"
"""Process id of the launcher, for its ranks."""
LAST_SECONDS = 10.0
"""From the end of a gang's first process until what is left of it is killed."""
LOOPBACK = "127.0.0.1"
STOPS = {signal.SIGTERM, signal.SIGINT}


def is_rank() -> bool:
    """Whether this process is one of a gang's, and not where it starts."""
    return "RANK" in os.environ


def follow_launcher() -> None:
    """A rank that `launch` started ends with it."""
    if LAUNCHER in os.environ:
        end_with_parent(int(os.environ[LAUNCHER]))


def launch(command: Sequence[str], config: RunConfig, run_dir: Path) -> int:
    """Run the command as `config.runtime.ranks` ranks to their end. Its exit status; a signal ends us too."""
    for path in run_dir.glob(_report(run_dir, "*").name):
        path.unlink()
    status = RankProcesses(command, config.runtime).wait()
    if status < 0:
        _end_by(-status)
    if status:
        _tell_failure(config, run_dir)
    return status


def _end_by(number: int) -> None:
    """Never returns: who waits for this process sees the signal that ended the rank."""
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


class RankProcesses:
    """Ranks that run. Made and used in the main thread: signals to this process are theirs."""

    def __init__(self, command: Sequence[str], runtime: Runtime) -> None:
        self._killed = False
        environments = rank_environments(os.environ, runtime)
        # Ranks are born with the signals blocked and open them when they can stop with a checkpoint.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        self._running = {
            process.pid: process
            for process in [subprocess.Popen(command, env=environment) for environment in environments]
        }
        for number in STOPS:
            signal.signal(number, self._pass_on)
        signal.signal(signal.SIGALRM, self._kill)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)

    def wait(self) -> int:
        """Until all have ended. 0, or what went wrong: a signal (negative) rather than a status."""
        found: list[int] = []
        while self._running:
            pid, status = os.wait()
            process = self._running.pop(pid, None)
            if process is None:
                continue
            process.returncode = os.waitstatus_to_exitcode(status)
            if not self._killed:
                found.append(process.returncode)
                signal.setitimer(signal.ITIMER_REAL, LAST_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, 0)
        return min(found) if min(found) < 0 else max(found)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        for process in self._running.values():
            process.send_signal(number)

    def _kill(self, number: int, frame: FrameType | None) -> None:
        """What is left waits for ranks that have gone."""
        self._killed = True
        for process in self._running.values():
            process.kill()


def rank_environments(environment: Mapping[str, str], runtime: Runtime) -> list[dict[str, str]]:
    """What each rank finds: torch.distributed's variables and, where there are GPUs, one of its own."""
    world = runtime.ranks
    gpus = [] if runtime.device == "cpu" else visible_gpus(environment)
    common = {
        "GLOO_SOCKET_IFNAME": "lo",
        **environment,
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(_free_port()),
        LAUNCHER: str(os.getpid()),
    }
    ranks = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]
    if gpus:
        for rank, gpu in zip(ranks, gpus, strict=False):
            rank |= {VARIABLE: gpu, "LOCAL_RANK": "0"}  # the only device that it sees
    return ranks


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


class EventLog(Protocol):
    """Where an engine's events go."""

    def write(self, event: BaseEvent) -> BaseEvent | None: ...

    def close(self) -> None: ...


class FailureReport:
    """A later rank's log: the first rank tells the same, so only the reason of this one's failure is kept."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, event: BaseEvent) -> BaseEvent | None:
        if isinstance(event, Failed):
            self.path.write_text(event.model_dump_json())
        return None

    def close(self) -> None:
        """Nothing to close."""


def open_log(config: RunConfig, run_dir: Path) -> EventLog:
    """The run's journal; a later rank's report."""
    rank = os.environ.get("RANK", "0")
    return FailureReport(_report(run_dir, rank)) if rank != "0" else open_journal(config, run_dir)


def open_journal(config: RunConfig, run_dir: Path) -> Journal:
    return Journal(
        run_dir / "events.jsonl",
        first_sequence=config.first_sequence,
        published_step=config.published_step,
    )


def _report(run_dir: Path, rank: str) -> Path:
    return run_dir / f"failed-rank-{rank}.json"


def _tell_failure(config: RunConfig, run_dir: Path) -> None:
    """Write the `failed` event of a later rank where the first one could not know of it."""
    reports = sorted(run_dir.glob(_report(run_dir, "*").name))
    if not reports:
        return
    journal = open_journal(config, run_dir)
    try:
        if not journal.ends_with_failure:
            journal.write(Failed.model_validate_json(reports[0].read_bytes()))
    except ValidationError:
        return  # its rank was killed while it wrote: a crash, which needs no reason
    finally:
        journal.close()
