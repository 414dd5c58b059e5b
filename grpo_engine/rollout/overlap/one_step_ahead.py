"""Samples the next step while this one is trained (`max_staleness` 1): deterministically one step off-policy.

The idea is that of AReaL (arXiv 2505.24298). The next step is sampled from a snapshot taken before this
step's update, and a step ends when both its training and the next step's sampling have ended. So rollouts are
exactly one step behind, a checkpoint holds the rollouts that are not trained yet, and an interrupted run
equals an uninterrupted one bit for bit. The loss uses the log-probabilities that the sampler recorded
(`gradients.py`).

It costs the snapshot's memory (`policy_snapshot.py`), and sampling and training share the processor. It is
faster if sampling alone leaves cores or the device idle. Evaluations run between steps with the current
policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from grpo_engine.config.job import ReinforcementMethod
from grpo_engine.contract.errors import ConfigError
from grpo_engine.graders.pool.pool import Grading
from grpo_engine.models.policy import Policy
from grpo_engine.objective.metrics import PhaseTimer
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.rollout.collector import Collector, StepGroups
from grpo_engine.rollout.overlap.policy_snapshot import PolicySnapshot
from grpo_engine.rollout.overlap.rollout_state import groups_from_json, groups_to_json
from grpo_engine.rollout.prompt_source import PromptOutcome, PromptSource
from grpo_engine.rollout.sampler.base import Sampler, Sampling, unwrapped
from grpo_engine.rollout.sampler.remote.sampler import RemoteSampler


def open_rollouts(
    method: ReinforcementMethod,
    policy: Policy,
    sampler: Sampler,
    grading: Grading,
    make_source: Callable[[], PromptSource],
    *,
    total_steps: int,
    version: Callable[[], int],
) -> tuple[PromptSource | OneStepAhead, Collector | OneStepAhead]:
    """The prompt source and the collector of a job: sampled when a step begins, or one step ahead.

    `version`: returns the policy's current version. Raises ConfigError if sampling ahead is impossible.
    """
    source = make_source()
    if not method.hyperparameters.max_staleness:
        return source, Collector(sampler, grading, source, method.hyperparameters, policy.decode)
    ranks = Ranks.current()
    if ranks.world > 1 and not isinstance(unwrapped(sampler), RemoteSampler):
        message = f"max_staleness is 1, but {ranks.world} ranks sample and train on the same devices"
        hint = "Set max_staleness to 0, train on one device, or give the job resources.sampler_gpus."
        raise ConfigError(message, hint=hint)
    snapshot = PolicySnapshot(policy, sampler)
    drawing = make_source()
    decode = snapshot.policy_copy.decode
    collector = Collector(
        snapshot.sampler, grading, drawing, method.hyperparameters, decode, ranks.with_own_messages()
    )
    ahead = OneStepAhead(snapshot, collector, source, total_steps, version)
    return ahead, ahead


@dataclass(eq=False)
class OneStepAhead:
    """A trainer's prompt source and collector in one, because a step's rows are drawn early.

    `collector` samples rows of its own source from the snapshot; `known` receives every outcome. The rows of
    a step are drawn before the outcomes of the previous step exist.
    """

    snapshot: PolicySnapshot
    collector: Collector
    known: PromptSource
    total_steps: int
    version: Callable[[], int]

    def __post_init__(self) -> None:
        self.drawing = self.collector.source
        self._background = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        self._next: Future[tuple[StepGroups, dict[str, float]]] | None = None
        self._drawn: dict[str, Any] = {}
        """State of the drawing source when it drew the rows of the step that is being trained."""
        self._staleness = 0

    def collect(self, step: int, sampling: Sampling, timer: PhaseTimer) -> StepGroups:
        """The step's groups, sampled ahead; starts sampling the next step.

        Raises GraderError if too many completions could not be scored.
        """
        if self._next is None:
            self._start(step, sampling)
        assert self._next is not None
        collected, seconds = self._next.result()
        timer.seconds |= seconds
        versions = {each.policy_version for graded in collected.groups for each in graded.group.completions}
        self._staleness = max((self.version() - version for version in versions), default=0)
        self._drawn, self._next = self.drawing.state, None
        if step < self.total_steps:
            self._draw_next()
            self._start(step + 1, replace(sampling, step=step + 1))
        return collected

    def observe(self, outcomes: Mapping[int, PromptOutcome]) -> None:
        """Record the step's outcomes; the rows of the next step are already drawn."""
        self.known.load(_at_place_of(self._drawn, self.known.state))
        self.known.observe(outcomes)

    @property
    def state(self) -> dict[str, Any]:
        """JSON for `load`; waits until the next step is sampled.

        If sampling fails, `collect` of that step raises the error.
        """
        content = {"known": self.known.state, "drawn": self.drawing.state, "next": None}
        if self._next is not None and self._next.exception() is None:
            content["next"] = groups_to_json(self._next.result()[0])
        return content

    def load(self, state: Mapping[str, Any]) -> None:
        self.known.load(state.get("known", {}))
        self.drawing.load(state.get("drawn", {}))
        self._next = None
        if waiting := state.get("next"):
            self._next = Future()
            self._next.set_result((groups_from_json(waiting, self.known.prompts), {}))

    def metrics(self) -> dict[str, float]:
        return {"sampling/staleness": float(self._staleness), **self.known.metrics()}

    def _draw_next(self) -> None:
        """Advance the drawing source past its last rows, with all outcomes so far."""
        self.drawing.observe({})
        self.drawing.load(_at_place_of(self.drawing.state, self.known.state))

    def _start(self, step: int, sampling: Sampling) -> None:
        """Sample and grade a step in the background from the current policy."""
        self.snapshot.update(self.version())
        self._next = self._background.submit(self._collect, step, sampling)

    def _collect(self, step: int, sampling: Sampling) -> tuple[StepGroups, dict[str, float]]:
        timer = PhaseTimer()
        with self.snapshot.stream.current():
            return self.collector.collect(step, sampling, timer), timer.seconds


def _at_place_of(place: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """The outcomes in `known`, at the position of `place`."""
    return {**known, "cursor": place["cursor"]} if "cursor" in place else dict(known)
