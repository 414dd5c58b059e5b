"""Grades groups while others are sampled, and computes advantages once all are graded.

A grading error is counted and named, never a silent reward of 0.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future

from grpo_engine.config.job import ReinforcementHyperparameters
from grpo_engine.contract.errors import GraderError, MachineError
from grpo_engine.contract.records import OVERLONG, GradeError, Sample, Score
from grpo_engine.graders import make_sample
from grpo_engine.graders.pool.pool import Grading
from grpo_engine.graders.rules.endpoint import NO_REWARD
from grpo_engine.objective.advantages import GroupAdvantages, GroupRewards, advantages
from grpo_engine.objective.metrics import PASS_REWARD, PhaseTimer
from grpo_engine.objective.packing import trained_tokens
from grpo_engine.objective.types import Completion, GradedGroup, Group, Prompt, ScoredGroup
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.rollout.prompt_source import PromptOutcome
from grpo_engine.rollout.sampler.base import Sampler, Sampling

UNANSWERED = "rollout"
"""Name of the part whose error says why there is no completion."""
NO_REWARD_HINT = (
    "Let the environment give a reward, at the latest with the last step of an episode. If episodes are cut, "
    "raise max_turns or max_completion_tokens."
)

Decode = Callable[[Sequence[int]], str]
"""Token ids → text, decoded as the completion's own text was."""


def sample_of(completion: Completion) -> Sample:
    """The completion as graders see it: its last turn, its tool calls and its environment's reward."""
    return make_sample(
        completion.text if completion.answer is None else completion.answer,
        num_tokens=completion.num_tokens,
        finish_reason=completion.finish_reason,
        tools=completion.tool_calls,
        environment_reward=None if completion.episode is None else completion.episode.reward,
    )


class PendingScores:
    """Grades finished groups while other groups are still being sampled."""

    def __init__(self, grading: Grading) -> None:
        self.grading = grading
        self._scores: dict[int, list[Future[Score] | Score]] = {}

    def submit(self, position: int, group: Group) -> None:
        """Start grading a group; the `on_group` callback of a sampler."""
        item = group.prompt.item
        self._scores[position] = [
            self.grading.submit(sample_of(each), item) if each.failure is None else _unscorable(each.failure)
            for each in group.completions
        ]

    def graded(self, groups: Sequence[Group]) -> list[GradedGroup]:
        """The groups with their scores; waits until all are graded."""
        return [
            GradedGroup(group, tuple(map(self._score, self._scores[position])))
            for position, group in enumerate(groups)
        ]

    def _score(self, pending: Future[Score] | Score) -> Score:
        """The score, once it is there; what the graders printed goes to the engine's output."""
        score = pending if isinstance(pending, Score) else pending.result()
        self.grading.printed.show(score.printed)
        return score.model_copy(update={"printed": {}}) if score.printed else score


def sample_and_grade(
    sampler: Sampler,
    grading: Grading,
    prompts_P: Sequence[Prompt],
    group_size: int,
    sampling: Sampling,
    timer: PhaseTimer,
    *,
    ranks: Ranks | None = None,
) -> list[GradedGroup]:
    """The prompts' groups with their scores, sampled and graded by all ranks and exchanged between them.

    A completion's random numbers do not depend on the number of ranks.
    """
    ranks = ranks or Ranks.current()
    first, own = ranks.part(prompts_P)
    pending = PendingScores(grading)
    with timer.measure("sample"):
        place = sampling.first_prompt + first
        groups = sampler.generate(own, group_size, sampling.starting_at(place), pending.submit)
    with timer.measure("score"):
        return ranks.joined(pending.graded(groups))


def _unscorable(failure: str) -> Score:
    return Score(
        reward=None, errors={UNANSWERED: GradeError(code="model_grader_server_error", message=failure)}
    )


def overlong_punishment(num_tokens: int, settings: ReinforcementHyperparameters) -> float:
    """DAPO (arXiv 2503.14476) eq. 13: 0, then a linear decrease over the last `overlong_buffer_tokens`."""
    buffer = settings.overlong_buffer_tokens
    if buffer == 0:
        return 0.0
    excess = num_tokens - (settings.max_completion_tokens - buffer)
    return -settings.overlong_penalty * min(1.0, max(0, excess) / buffer)


def punished(graded: GradedGroup, settings: ReinforcementHyperparameters) -> GradedGroup:
    """The group with the soft overlong punishment as a part of each reward."""
    if settings.overlong_buffer_tokens == 0:
        return graded
    scores = []
    for score, completion in zip(graded.scores, graded.group.completions, strict=True):
        if score.reward is not None:
            punishment = overlong_punishment(completion.num_tokens, settings)
            update = {"reward": score.reward + punishment, "parts": {**score.parts, OVERLONG: punishment}}
            score = score.model_copy(update=update)
        scores.append(score)
    return GradedGroup(graded.group, tuple(scores))


def refuse_broken_grader(graded: Sequence[GradedGroup], limit: float) -> None:
    """Raise GraderError if more than `limit` of the completions could not be scored.

    Raises MachineError instead if only failures of this machine's sandbox exceed the limit. Completions that
    failed themselves (`Completion.failure`) count as completions, but not as the grader's errors.
    """
    pairs = [pair for each in graded for pair in zip(each.scores, each.group.completions, strict=True)]
    broken = [score for score, completion in pairs if score.reward is None and completion.failure is None]
    if len(broken) <= limit * len(pairs):
        return
    count = f"{len(broken)} of {len(pairs)} completions could not be scored"
    graders_fault = [score for score in broken if not _lost_the_sandbox(score)]
    if len(graders_fault) <= limit * len(pairs):
        reason = next(grader_error_texts(broken))
        raise MachineError(f"{count}, because code does not run on this machine now: {reason}")
    raise GraderError(
        f"{count} (max_grader_error_rate {limit:g})",
        hint=NO_REWARD_HINT if all(map(_lacks_a_reward, graders_fault)) else None,
        evidence=_first_rows(graded)[:3],
    )


def _lost_the_sandbox(score: Score) -> bool:
    """Whether the machine, not the grader or the completion, caused the missing reward."""
    return any(error.code == "python_grader_server_error" for error in score.errors.values())


def _lacks_a_reward(score: Score) -> bool:
    """Whether the reward is missing because the completion's environment gave none."""
    return any(error.message.startswith(NO_REWARD) for error in score.errors.values())


def _first_rows(graded: Sequence[GradedGroup]) -> tuple[str, ...]:
    """Each different error of a grader, with the first row, counted from 1, that caused it."""
    found: dict[str, int] = {}
    for group in graded:
        for complaint in grader_error_texts([each for each in group.scores if each.reward is None]):
            found.setdefault(complaint, group.group.prompt.row + 1)
    return tuple(f"row {row}: {complaint}" for complaint, row in found.items())


def grader_error_texts(scores: Sequence[Score]) -> Iterator[str]:
    for score in scores:
        for part, error in score.errors.items():
            yield f"{part}: {error.code}: {error.message}"


def with_advantages(
    graded_P: Sequence[GradedGroup],
    settings: ReinforcementHyperparameters,
    decode: Decode,
    *,
    weights: Mapping[str, float] | None = None,
) -> list[ScoredGroup]:
    """All groups of a step with their advantages. `weights` of a multi grader's parts are used by `gdpo`
    only."""
    rewards = [group_rewards(graded, settings, decode) for graded in graded_P]
    found = advantages(rewards, settings.advantage, ddof=settings.advantage_ddof, weights=weights)
    return scored_groups(graded_P, found)


def scored_groups(
    graded_P: Sequence[GradedGroup], advantages_P: Sequence[GroupAdvantages]
) -> list[ScoredGroup]:
    return [
        ScoredGroup(graded.group, graded.scores, each.values, each.has_signal, each.by_token)
        for graded, each in zip(graded_P, advantages_P, strict=True)
    ]


def with_zero_advantages(graded: GradedGroup) -> ScoredGroup:
    """The group with advantages of 0 and no signal, because it was discarded or only evaluated."""
    return ScoredGroup(graded.group, graded.scores, (0.0,) * len(graded.scores), has_signal=False)


def prompt_outcomes(scored: Sequence[ScoredGroup]) -> dict[int, PromptOutcome]:
    """Outcome of each prompt by row. Groups without any reward are left out: they do not show how difficult
    their prompts are."""
    found: dict[int, PromptOutcome] = {}
    for each in scored:
        rewards = [score.reward for score in each.scores if score.reward is not None]
        if rewards:
            pass_rate = sum(reward >= PASS_REWARD for reward in rewards) / len(rewards)
            found[each.group.prompt.row] = PromptOutcome(each.has_signal, pass_rate)
    return found


def group_rewards(
    graded: GradedGroup, settings: ReinforcementHyperparameters, decode: Decode
) -> GroupRewards:
    completions = graded.group.completions
    return GroupRewards(
        rewards=tuple(score.reward for score in graded.scores),
        lengths=tuple(trained_tokens(c, settings.mask_truncated_completions) for c in completions),
        parts=tuple(score.parts for score in graded.scores),
        steps=tuple(
            step_ends(completion, score, decode)
            for completion, score in zip(completions, graded.scores, strict=True)
        ),
        penalties=graded.penalties,
    )


def step_ends(completion: Completion, score: Score, decode: Decode) -> tuple[tuple[int, float], ...]:
    """Each reasoning step as (sampled tokens up to its end, reward); ends are given in characters."""
    sampled = completion.sampled or (True,) * len(completion.token_ids)
    written = [column + 1 for column, own in enumerate(sampled) if not own]
    start = max((*written, *completion.row_starts), default=0)
    turn, before = completion.token_ids[start:], sum(sampled[:start])

    def tokens(end: int) -> int:
        return before + bisect_left(range(len(turn)), end, key=lambda count: len(decode(turn[:count])))

    return tuple((tokens(step.end), step.reward) for step in score.steps)
