"""A probe: samples and scores the job's prompts as its first steps would, and trains nothing.

A probe has no checkpoint: if interrupted, it starts again and draws the same completions.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from grpo_engine.config.job import ProbeSize, ReinforcementMethod, RunConfig
from grpo_engine.contract.events import BaseEvent, Finished, Probed, StepFinished
from grpo_engine.graders.pool.pool import Grading
from grpo_engine.models.policy import Policy
from grpo_engine.objective.metrics import PASS_REWARD, PhaseTimer, finite, peak_memory_bytes, step_metrics
from grpo_engine.objective.types import Completion, Prompt, ScoredGroup
from grpo_engine.rollout.collector import Collector, sampling_of
from grpo_engine.rollout.prompt_source import PromptSource
from grpo_engine.rollout.recording import rollouts
from grpo_engine.rollout.sampler.base import Sampler, Sampling, sampler_name
from grpo_engine.rollout.scoring import grader_error_texts, sample_and_grade, with_advantages
from grpo_engine.training.method import Method, MethodState


class Probe(Method):
    """Makes steps as large as the job's and reports each, so that a probe shows progress and can stop."""

    phase = "probing"

    def __init__(
        self,
        config: RunConfig,
        size: ProbeSize,
        method: ReinforcementMethod,
        policy: Policy,
        sampler: Sampler,
        grading: Grading,
        prompts: Sequence[Prompt],
    ) -> None:
        self.seed = config.seed
        self.method = method
        self.policy = policy
        self.sampler = sampler
        self.grading = grading
        self.num_rows = len(prompts)
        settings = method.hyperparameters
        source = PromptSource(prompts, settings.prompts_per_step, config.seed)
        self.collector = Collector(sampler, grading, source, settings, policy.decode)
        self.batches = batches(source, min(size.prompts, len(prompts)))
        self.total_steps = len(self.batches)
        self.state = MethodState()
        self.sampler_name = sampler_name(sampler)
        self.scored: list[ScoredGroup] = []
        self.greedy: list[float] = []
        self.seconds: Counter[str] = Counter()

    def prepare(self) -> None:
        self.sampler.load_policy(0)

    def step(self, step: int) -> Iterator[BaseEvent]:
        settings, timer = self.method.hyperparameters, PhaseTimer()
        sampling = sampling_of(settings, self.seed, step)
        graded = self.collector.graded(self.batches[step - 1], sampling, timer)
        weights = getattr(self.method.grader, "weights", None)
        scored = with_advantages(graded, settings, self.policy.decode, weights=weights)
        self.scored += scored
        self.greedy += self._greedy_rewards(self.batches[step - 1], sampling)
        self.seconds.update(timer.seconds)
        yield from rollouts(step, scored)
        yield StepFinished(step=step, metrics=finite(step_metrics(scored, timer, self.policy.device)))

    def _greedy_rewards(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[float]:
        """Rewards of one completion per prompt at temperature 0; unscorable ones are left out."""
        greedy = replace(sampling, temperature=0.0)
        graded = sample_and_grade(self.sampler, self.grading, prompts, 1, greedy, PhaseTimer())
        scores = (each.scores[0].reward for each in graded)
        return [reward for reward in scores if reward is not None]

    def finish(self, finished: Finished) -> Iterator[BaseEvent]:
        """Yield the counts, in place of an artifact."""
        memory = int(peak_memory_bytes(self.policy.device))
        yield counted(self.scored, self.greedy, self.seconds, memory)

    def close(self) -> None:
        self.grading.close()


def batches(source: PromptSource, num_prompts: int) -> list[list[Prompt]]:
    """The first `num_prompts` rows that training would use, by step; the last step may be shorter."""
    starts = range(0, num_prompts, source.rows_per_step)
    return [source.batch(step)[: num_prompts - start] for step, start in enumerate(starts, 1)]


def counted(
    scored: Sequence[ScoredGroup], greedy: Sequence[float], seconds: Mapping[str, float], peak_memory: int
) -> Probed:
    completions = [each for group in scored for each in group.group.completions]
    failures = [each.failure for each in completions if each.failure is not None]
    scores = [score for group in scored for score in group.scores]
    rewards = [score.reward for score in scores if score.reward is not None]
    by_grader = [
        score
        for each, score in zip(completions, scores, strict=True)
        if score.reward is None and each.failure is None
    ]
    return Probed(
        prompts=len(scored),
        completions=len(completions),
        passed=sum(reward >= PASS_REWARD for reward in rewards),
        groups_with_signal=sum(group.has_signal for group in scored),
        groups_solved=sum(_is_solved(group) for group in scored),
        truncated=sum(each.is_cut for each in completions),
        grader_errors=len(scores) - len(rewards),
        grader_error=next(grader_error_texts(by_grader or scores), ""),
        failed_sessions=len(failures),
        session_failure=next(iter(failures), ""),
        mean_reward=sum(rewards) / len(rewards) if rewards else None,
        highest_reward=max(rewards, default=None),
        greedy_completions=len(greedy),
        greedy_passed=sum(reward >= PASS_REWARD for reward in greedy),
        greedy_mean_reward=sum(greedy) / len(greedy) if greedy else None,
        token_surprise_nats=_surprise(completions),
        completion_tokens=sum(len(each.token_ids) for each in completions),
        turns=sum(len(each.episode.turns) for each in completions if each.episode is not None),
        sample_seconds=seconds.get("sample", 0.0),
        score_seconds=seconds.get("score", 0.0),
        peak_memory_bytes=peak_memory,
    )


def _surprise(completions: Sequence[Completion]) -> float | None:
    """Mean of −log(probability) of the tokens that the model wrote; a tool's tokens have the
    log-probability 0."""
    num_sampled = sum(each.num_sampled for each in completions)
    return -sum(map(sum, (each.logprobs for each in completions))) / num_sampled if num_sampled else None


def _is_solved(group: ScoredGroup) -> bool:
    rewards = [score.reward for score in group.scores if score.reward is not None]
    return bool(rewards) and min(rewards) >= PASS_REWARD
