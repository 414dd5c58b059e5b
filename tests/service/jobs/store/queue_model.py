"""What the queue should do, in plain Python: one job's row, and every answer as a prediction.

Boundary: written from the design (states, fences, leases, backoff), not from the service's code, of which it
uses the states' names alone. `now` is the time.
"""

from dataclasses import dataclass, field

from service.jobs.model.states import JobState as S

MAX_FAILURES = 3
KEPT_CHECKPOINTS = 2
MAX_BACKOFF = 300.0
REWAKE_SECONDS = 30.0
HELD = {S.RUNNING, S.CANCELLING, S.PAUSING}
TERMINAL = {S.SUCCEEDED, S.FAILED, S.CANCELLED}
REQUESTS = {
    "cancel": {
        S.QUEUED: S.CANCELLED,
        S.PAUSED: S.CANCELLED,
        S.RUNNING: S.CANCELLING,
        S.PAUSING: S.CANCELLING,
        S.CANCELLING: S.CANCELLING,
        S.CANCELLED: S.CANCELLED,
    },
    "pause": {S.QUEUED: S.PAUSED, S.RUNNING: S.PAUSING, S.PAUSING: S.PAUSING, S.PAUSED: S.PAUSED},
    "resume": {S.PAUSED: S.QUEUED, S.QUEUED: S.QUEUED, S.RUNNING: S.RUNNING},
}
"""Request → state → the next one; it is refused in other states."""
FINISHES = {
    S.RUNNING: {S.SUCCEEDED: S.SUCCEEDED, S.FAILED: S.FAILED, S.PAUSED: S.PAUSED},
    S.PAUSING: {S.SUCCEEDED: S.SUCCEEDED, S.FAILED: S.FAILED, S.PAUSED: S.PAUSED},
    S.CANCELLING: {
        S.SUCCEEDED: S.SUCCEEDED,
        S.FAILED: S.CANCELLED,
        S.PAUSED: S.CANCELLED,
        S.CANCELLED: S.CANCELLED,
    },
}
"""State → the end that a worker reports → the next state; other ends are refused."""


class Refused(Exception):
    """The state does not allow it."""


@dataclass
class ModelJob:
    """A row, and the events about it."""

    id: str
    tenant: str
    pool: str
    priority: int
    gpus: int
    created_at: float
    state: S = S.QUEUED
    phase: str = "queued"
    fence: int = 0
    attempt: int = 0
    failures: int = 0
    owner: str | None = None
    lease_end: float | None = None
    not_before: float = 0.0
    woken_at: float = 0.0
    finished_at: float | None = None
    step: int = 0
    engine_sequence: int = 0
    checkpoint_step: int = 0
    checkpoints: dict[int, tuple[int, bool]] = field(default_factory=dict)
    """Step → (fence, whether a run may resume from it)."""
    metrics: dict[int, float] = field(default_factory=dict)
    recorded: list[tuple[str, int]] = field(default_factory=list)
    """(state and phase, or what else it is; fence) of each history entry."""

    def holds(self, fence: int) -> bool:
        return self.state in HELD and self.fence == fence

    def move(self, target: S, now: float, fence: int | None = None) -> None:
        self.fence = self.fence if fence is None else fence
        self.state, self.phase = target, target.value
        if target not in HELD:
            self.owner = self.lease_end = None
        if target in TERMINAL:
            self.finished_at = now
        self.recorded.append((f"{target.value}/{self.phase}", self.fence))

    def claim(self, worker: str, now: float, lease_seconds: float) -> None:
        self.fence, self.attempt = self.fence + 1, self.attempt + 1
        self.state, self.phase = S.RUNNING, "preparing"
        self.owner, self.lease_end = worker, now + lease_seconds
        self.recorded.append(("running/preparing", self.fence))

    def renew(self, fence: int, now: float, lease_seconds: float) -> S | None:
        if not self.holds(fence):
            return None
        self.lease_end = now + lease_seconds
        return self.state

    def release(self, fence: int, now: float, backoff: float, *, is_failure: bool) -> bool:
        if not self.holds(fence):
            return False
        self.end_attempt(now, backoff, self.fence, is_failure=is_failure)
        return True

    def end_attempt(self, now: float, backoff: float, next_fence: int, *, is_failure: bool) -> None:
        verb = {S.CANCELLING: S.CANCELLED, S.PAUSING: S.PAUSED}
        if self.state in verb:
            self.move(verb[self.state], now, next_fence)
            return
        pause = min(MAX_BACKOFF, backoff * 2**self.failures)
        self.failures += is_failure
        if is_failure and self.failures >= MAX_FAILURES:
            self.move(S.FAILED, now, next_fence)
            return
        self.not_before = now + pause
        self.move(S.QUEUED, now, next_fence)

    def finish(self, fence: int, end: S, now: float) -> bool:
        if not self.holds(fence):
            return False
        if end not in FINISHES[self.state]:
            raise Refused
        self.move(FINISHES[self.state][end], now)
        return True

    def request(self, verb: str, now: float) -> S:
        if self.state not in REQUESTS[verb]:
            raise Refused
        target = REQUESTS[verb][self.state]
        if target is not self.state:
            self.move(target, now)
            if verb == "resume":
                self.not_before = self.woken_at = 0.0
        return target

    def checkpoint(self, fence: int, what: str, step: int) -> bool:
        """Published, withdrawn because it is damaged, or older ones retired."""
        if self.holds(fence):
            {"publish": self._publish, "withdraw": self._withdraw, "retire": self._retire}[what](fence, step)
        return self.holds(fence)

    def _publish(self, fence: int, step: int) -> None:
        if step > self.checkpoint_step:
            self.checkpoint_step, self.failures = step, 0
        self.checkpoints[step] = (fence, True)
        self.recorded.append(("message", fence))

    def _withdraw(self, fence: int, step: int) -> None:
        if step in self.checkpoints:
            self.checkpoints[step] = (self.checkpoints[step][0], False)
        usable = [each for each, (_, is_usable) in self.checkpoints.items() if is_usable]
        self.checkpoint_step = max(usable, default=0)
        self.recorded.append(("message", fence))

    def _retire(self, _fence: int, _step: int) -> None:
        newest_first = sorted(self.checkpoints, reverse=True)
        usable_first = sorted(newest_first, key=lambda step: not self.checkpoints[step][1])
        for step in usable_first[KEPT_CHECKPOINTS:]:
            del self.checkpoints[step]

    def record(self, fence: int, steps: list[tuple[int, int, float]], phase: str | None) -> int | None:
        """Each step is (event's sequence, step, value); a phase comes as one more event after them."""
        if not self.holds(fence):
            return None
        new = [event for event in steps if event[0] > self.engine_sequence]
        for sequence, step, value in new:
            self.engine_sequence, self.step = sequence, max(step, self.step)
            self.metrics.setdefault(step, value)
            self.recorded.append(("metrics", fence))
        if phase is not None:
            self.engine_sequence += 1
            if self.state is S.RUNNING and phase != self.phase:
                self.phase = phase
                self.recorded.append((f"running/{phase}", fence))
        return len(new) + (phase is not None)


@dataclass
class Model:
    """All jobs, and the database's clock."""

    now: float
    jobs: dict[str, ModelJob] = field(default_factory=dict)

    def best(self, pool: str, gpus: int) -> set[str]:
        """Ids of which a claim takes one; more than one if they are equal."""
        eligible = [
            job
            for job in self.jobs.values()
            if job.state is S.QUEUED and job.pool == pool and job.gpus <= gpus and job.not_before <= self.now
        ]
        rank = min(((-job.priority, job.created_at) for job in eligible), default=None)
        return {job.id for job in eligible if (-job.priority, job.created_at) == rank}

    def sweep(self, backoff: float) -> set[tuple[str, S]]:
        """(Job, its next state) of each whose lease has ended."""
        expired = [
            job for job in self.jobs.values() if job.lease_end is not None and job.lease_end <= self.now
        ]
        for job in expired:
            job.end_attempt(self.now, backoff, job.fence + 1, is_failure=True)
        return {(job.id, job.state) for job in expired}

    def due_pools(self) -> list[str]:
        """Sorted; one for each job that is woken."""
        due = [
            job
            for job in self.jobs.values()
            if job.state is S.QUEUED
            and job.not_before <= self.now
            and job.woken_at < self.now - REWAKE_SECONDS
        ]
        for job in due:
            job.woken_at = self.now
        return sorted(job.pool for job in due)
