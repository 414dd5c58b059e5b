"""Runs one engine as several processes (ranks) that start, stop and end together.

    launch([sys.executable, "-m", "grpo_engine", "--config", …], config, run_dir)

Each rank receives the variables that `torchrun` sets, so `torchrun --nproc-per-node N -m grpo_engine …` works
too; but torchrun reports a checkpoint on SIGTERM as a failure, and a crash as exit status 1.
The first rank writes events and checkpoints. The exit status is that of a single engine: 0 only if all ranks
exit with 0. If one dies, the others are killed within seconds and its status (or signal) is returned.
Boundary: processes, no torch. Left out: ranks on several machines.
"""

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from pydantic import ValidationError

from grpo_engine.config.job import RunConfig, Runtime
from grpo_engine.contract.errors import MachineError
from grpo_engine.contract.events import BaseEvent, Failed
from grpo_engine.files.event_log import Journal
from grpo_engine.process.gpus import VISIBLE_DEVICES, visible_gpus
from grpo_engine.process.parent_death import end_with_parent

LAUNCHER = "GRPO_GANG_LAUNCHER"
"""Environment variable with the process id of the launcher."""
LAST_SECONDS = 10.0
"""Seconds from the end of the first rank until the remaining ones are killed."""
LOOPBACK = "127.0.0.1"
STOPS = {signal.SIGTERM, signal.SIGINT}


def is_rank() -> bool:
    """Whether this process is a rank, not the launcher."""
    return "RANK" in os.environ


def follow_launcher() -> None:
    """If `launch` started this rank, end it when the launcher ends."""
    if LAUNCHER in os.environ:
        end_with_parent(int(os.environ[LAUNCHER]))


def launch(command: Sequence[str], config: RunConfig, run_dir: Path) -> int:
    """Run the command as `config.runtime.ranks` ranks and return the exit status; a signal is repeated
    here."""
    for path in run_dir.glob(_report(run_dir, "*").name):
        path.unlink()
    status = RankProcesses(command, config.runtime).wait()
    if status < 0:
        _end_by(-status)
    if status:
        _record_failure(config, run_dir)
    return status


def _end_by(number: int) -> None:
    """End this process by the signal that ended the rank; never returns."""
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


class RankProcesses:
    """Running ranks. Use in the main thread only: signals to this process are passed on to them."""

    def __init__(self, command: Sequence[str], runtime: Runtime) -> None:
        self._killed = False
        environments = rank_environments(os.environ, runtime)
        # Ranks start with the signals blocked and unblock them once they can stop with a checkpoint.
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
        """Wait for all ranks. Returns 0, a negative signal number if a rank died by one, or the highest
        status."""
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
        """Kill the remaining ranks, which wait for one that has ended."""
        self._killed = True
        for process in self._running.values():
            process.kill()


def rank_environments(environment: Mapping[str, str], runtime: Runtime) -> list[dict[str, str]]:
    """Environment of each rank: torch.distributed's variables and, if there are GPUs, one GPU.

    Raises MachineError if there are some, but not enough.
    """
    world = runtime.ranks
    gpus = [] if runtime.device == "cpu" else visible_gpus(environment)
    if 0 < len(gpus) < world:
        found = f"{world} ranks need {world} GPUs, but this machine has {len(gpus)}"
        raise MachineError(f"{found}: set GRPO_GPUS to at most that")
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
        for rank, gpu in zip(ranks, gpus[:world], strict=True):
            rank |= {VISIBLE_DEVICES: gpu, "LOCAL_RANK": "0"}  # the only visible device
    return ranks


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class FailureReport:
    """Log of a later rank: stores only its failure, because the first rank writes all other events."""

    path: Path

    def write(self, event: BaseEvent) -> None:
        if isinstance(event, Failed):
            self.path.write_text(event.model_dump_json())

    def close(self) -> None:
        """Nothing to close."""


def open_log(config: RunConfig, run_dir: Path) -> Journal | FailureReport:
    rank = os.environ.get("RANK", "0")
    return FailureReport(_report(run_dir, rank)) if rank != "0" else open_journal(config, run_dir)


def open_journal(config: RunConfig, run_dir: Path) -> Journal:
    return Journal(
        run_dir / "events.jsonl", first_sequence=config.first_sequence, published_step=config.published_step
    )


def _report(run_dir: Path, rank: str) -> Path:
    return run_dir / f"failed-rank-{rank}.json"


def _record_failure(config: RunConfig, run_dir: Path) -> None:
    """Write the `failed` event of a later rank if the first one has written none."""
    reports = sorted(run_dir.glob(_report(run_dir, "*").name))
    if not reports:
        return
    journal = open_journal(config, run_dir)
    try:
        if not journal.ends_with_failure:
            journal.write(Failed.model_validate_json(reports[0].read_bytes()))
    except ValidationError:
        return  # the rank was killed while writing: a crash without a reason
    finally:
        journal.close()
