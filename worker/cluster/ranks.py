"""The ranks of one run, which their driver starts, watches, stops and ends together.

The first rank's events and the logs of all ranks are copied into the worker's run directory. The exit status
is 0 only if all ranks exit with 0. If a rank dies or is lost, the engines of the others are killed, because
SIGTERM has no effect on a process that is blocked in a collective.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Any

import ray
from pydantic import ValidationError
from ray.exceptions import RayError

from grpo_engine.contract.events import Failed
from grpo_engine.files.event_log import Journal
from worker.cluster.plan import LAST_SECONDS, LOST, SILENCE_SECONDS, ClusterLost, Plan, Status
from worker.cluster.rank import Location, Report, log_of
from worker.cluster.sampler import SamplerGroup, end_actors
from worker.launchers.base import EVENTS
from worker.launchers.local import append


class Ranks:
    """All ranks of a plan. Closing it ends their engines."""

    def __init__(
        self,
        plan: Plan,
        actors: Sequence[Any],
        locations: Sequence[Location],
        report_waiting: Callable[[], None],
    ) -> None:
        """`report_waiting` is called about once a second while a call waits for the ranks."""
        self.status = Status()
        self._report_waiting = report_waiting
        self._plan, self._actors, self._locations = plan, actors, locations
        self._copied = 0
        """Bytes of the events that have been copied to the worker's run directory."""
        self._ended: dict[int, Report] = {}
        """Number of each ended rank → its last report, in the order in which they have ended."""
        self._killed: set[int] = set()
        self._lost: dict[int, str] = {}
        """Number of each lost rank → a sentence about it."""
        nodes = [location.node for location in locations]
        self._first_of_host = [nodes.index(node) for node in nodes]
        threading.Thread(target=self._watch, name="ranks", daemon=True).start()
        entered = zip(actors, self._first_of_host, strict=True)
        self._results({rank: actor.enter.remote(rank, first) for rank, (actor, first) in enumerate(entered)})

    def files(self, method: str, *arguments: Any, everywhere: bool) -> list[Any]:
        """Call a method of the run directory, on each host or on the first rank's; returns their results.

        No call is still running when this returns or raises, because a second one would write the same files;
        only a lost rank may still run one.
        """
        first_ranks = sorted(set(self._first_of_host)) if everywhere else [0]
        return self._results(
            {rank: self._actors[rank].files.remote(method, *arguments) for rank in first_ranks}
        )

    def start(self, samplers: SamplerGroup) -> None:
        """Start all engines, which may use the samplers."""
        actors = self._actors
        self._results(
            {rank: each.start.remote(self._locations, actors, samplers) for rank, each in enumerate(actors)}
        )

    def stop(self, grace_seconds: float) -> None:
        """Have all engines write a checkpoint and end."""
        for actor in self._actors:
            actor.stop.remote(grace_seconds)

    def kill(self) -> None:
        """Kill all engines."""
        self._killed |= set(range(len(self._actors)))
        end_actors(self._actors, "kill")

    def leave(self) -> None:
        """Kill all engines, and delete their run directories."""
        end_actors(self._actors, "leave")

    def _results(self, calls: Mapping[int, Any]) -> list[Any]:
        """The results of calls to these ranks. Raises ClusterLost when only lost ranks have not answered."""
        running = dict(calls)
        while running:
            ended, _ = ray.wait([*running.values()], num_returns=len(running), timeout=1.0)
            running = {rank: call for rank, call in running.items() if call not in ended}
            if running and running.keys() <= self._lost.keys():
                raise ClusterLost(next(self._lost[rank] for rank in running))
            self._report_waiting()
        results: list[Any] = ray.get([*calls.values()])
        return results

    def _watch(self) -> None:
        """Request reports from each rank until the driver ends."""
        requests = {self._next_report(rank): (rank, monotonic()) for rank in range(len(self._actors))}
        while requests:
            answers, _ = ray.wait(list(requests), timeout=1.0)
            for answer in answers:
                rank, _ = requests.pop(answer)
                try:
                    self._take(rank, ray.get(answer))
                    requests[self._next_report(rank)] = rank, monotonic()
                except RayError as error:
                    self._lose(rank, error)
                except OSError as error:
                    self._give_up(f"The engine's events cannot be stored: {error.strerror}.")
            for silent, (rank, since) in list(requests.items()):
                if monotonic() - since > SILENCE_SECONDS:
                    del requests[silent]
                    self._lose(rank, None)

    def _next_report(self, rank: int) -> Any:
        actor = self._actors[rank]
        return actor.keep_alive.remote() if rank in self._ended else actor.report.remote(self._copied)

    def _take(self, rank: int, report: Report | None) -> None:
        if report is None:
            return
        if report.piece:
            with (self._plan.folder / EVENTS).open("ab") as copy:
                copy.write(report.piece)
            self._copied += len(report.piece)
        if report.printed:
            with suppress(OSError):  # on a full disk the lines are lost
                append(self._plan.folder / log_of(rank), "\n".join([*report.printed, ""]).encode())
        if report.exit_code is not None:
            self._end(rank, report)

    def _end(self, rank: int, report: Report) -> None:
        """Record a rank's end. The other ranks are killed a few seconds later."""
        if rank in self._killed:
            report = replace(report, exit_code=0, failure=None)
        self._ended[rank] = report
        if len(self._ended) == 1:
            last = threading.Timer(LAST_SECONDS, self.kill)
            last.daemon = True
            last.start()
        if len(self._ended) == len(self._actors) and self.status.exit_code is None:
            self._conclude()

    def _conclude(self) -> None:
        ended = list(self._ended.values())  # the first one may be why the others have ended
        codes = [report.exit_code or 0 for report in ended]
        code = min(codes) if min(codes) < 0 else max(codes)
        failure = next((report.failure for report in ended if report.failure), None)
        if code and failure:
            self._record(failure)
        self.status = Status(code, None, ended[codes.index(code)].log_tail)

    def _record(self, failure: bytes) -> None:
        """Write the `failed` event of another rank, if the first rank has written none."""
        with suppress(ValidationError):  # the rank was killed while it was writing
            event = Failed.model_validate_json(failure)
            journal = Journal(self._plan.folder / EVENTS, first_sequence=self._plan.first_sequence)
            if not journal.ends_with_failure:
                journal.write(event)
            journal.close()

    def _lose(self, rank: int, error: RayError | None) -> None:
        """End the run because a rank's host or process is lost."""
        cause = "did not answer" if error is None else type(error).__name__
        self._lost[rank] = f"Rank {rank} on {self._locations[rank].host} was lost ({cause})."
        self._give_up(self._lost[rank])

    def _give_up(self, reason: str) -> None:
        if self.status.exit_code is None:
            self.kill()
            self.status = Status(LOST, reason)
