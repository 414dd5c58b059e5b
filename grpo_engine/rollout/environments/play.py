"""The episodes of one sampling: which of them act, which wait, and how each of them ends."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import TYPE_CHECKING

from anyio.from_thread import BlockingPortal

from grpo_engine.config.environments import OpenEnvEnvironment
from grpo_engine.contract.records import Episode, EpisodeTurn, FinishReason
from grpo_engine.objective.types import Completion, Prompt
from grpo_engine.outbound.openenv import EnvironmentFailure, Observation, RefusedAction
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.rollout.environments.actions import MalformedAction
from grpo_engine.rollout.environments.episodes import EpisodeSession
from grpo_engine.rollout.sampler.base import Continuation, GroupAssembly, NextTurn, OnGroup, Sampling
from grpo_engine.rollout.sampler.turns import TurnQueue
from grpo_engine.rollout.tools.conversation import Conversation

if TYPE_CHECKING:
    from grpo_engine.rollout.environments.sampler import EnvironmentSampler

MAX_SHOWN_CHARACTERS = 2000
"""Maximum characters of an action and of an observation in the record."""


class PlayedEpisode:
    """One completion while it grows."""

    def __init__(self, name: str, seed: int, conversation: Conversation, session: EpisodeSession) -> None:
        self.name, self.seed, self.session = name, seed, session
        self.conversation = conversation
        self.turns: list[EpisodeTurn] = []
        self.failure: str | None = None
        self.answer: Future[Observation]
        """To the newest turn, or to the reset."""

    @property
    def options(self) -> OpenEnvEnvironment:
        return self.session.options

    def add(self, observation: Observation) -> None:
        """Record what followed the newest turn."""
        self.turns.append(
            EpisodeTurn(
                action=self.conversation.last.text[:MAX_SHOWN_CHARACTERS],
                observation=observation.text[:MAX_SHOWN_CHARACTERS],
                reward=observation.reward,
                done=observation.done,
            )
        )

    def record(self) -> Episode:
        rewards = [turn.reward for turn in self.turns if turn.reward is not None]
        reward = None
        if rewards and self.failure is None:
            reward = rewards[-1] if self.options.reward == "last" else sum(rewards)
        return Episode(
            environment=self.name,
            seed=self.seed,
            turns=tuple(self.turns),
            reward=reward,
            failure=self.failure,
        )


class Play:
    """The episodes of one `generate`."""

    def __init__(
        self,
        sampler: EnvironmentSampler,
        portal: BlockingPortal,
        prompts_P: Sequence[Prompt],
        group_size: int,
        sampling: Sampling,
        on_group: OnGroup | None,
    ) -> None:
        """`portal`: to the thread in which the sessions run."""
        self.sampler, self.portal, self.sampling = sampler, portal, sampling
        self.prompts = list(prompts_P)
        """The prompts; each gets its group's first observation."""
        self.groups = GroupAssembly(self.prompts, group_size, on_group)
        world = Ranks.current().world
        places = {
            name: asyncio.Semaphore(max(1, each.concurrency // world))
            for name, each in sampler.environments.items()
        }
        self.first: dict[int, str] = {}
        """Place of a prompt → its group's first observation."""
        limits = [len(prompt.token_ids) + self._limit(prompt) for prompt in prompts_P]
        most = len(prompts_P) * group_size
        self.queue = TurnQueue(self._next_turn, most=most, longest=max(limits, default=0))
        self.episodes = [
            self._episode(place, sample, places)
            for place in range(len(prompts_P))
            for sample in range(group_size)
        ]
        self.by_stream = {each.conversation.stream[:2]: each for each in self.episodes}

    def _episode(self, place: int, sample: int, places: Mapping[str, asyncio.Semaphore]) -> PlayedEpisode:
        prompt, stream = self.prompts[place], self.sampling.stream(place, sample)
        name = str(prompt.item["environment"])
        options = self.sampler.environments[name]
        arguments = {"seed": task_seed(self.sampling, prompt.row, stream[0]), **options.reset}
        arguments |= prompt.item.get("reset") or {}
        given = arguments["seed"]
        seed = given if isinstance(given, int) else 0
        conversation = Conversation(prompt, place, stream, self._limit(prompt))
        episode = PlayedEpisode(name, seed, conversation, EpisodeSession(options, places[name]))
        self._wait(episode, self.portal.start_task_soon(episode.session.start, arguments))
        return episode

    def _limit(self, prompt: Prompt) -> int:
        context = self.sampler.policy.max_length
        room = self.sampling.max_tokens if context is None else context - len(prompt.token_ids)
        return min(self.sampling.max_tokens, room)

    def run(self) -> None:
        """Play all episodes; the next turn of each is sampled as soon as it has an observation."""
        try:
            self.sampler.inner.sample_turns(self.queue, self.sampling, self._act)
        finally:
            for each in self.episodes:  # a session that is being opened would stay open
                each.answer.cancel()
            wait([self.portal.start_task_soon(each.session.close) for each in self.episodes])

    def _wait(self, episode: PlayedEpisode, answer: Future[Observation]) -> None:
        episode.answer = answer
        self.queue.put_after(episode, [answer])

    def _next_turn(self, episode: PlayedEpisode) -> NextTurn | None:
        """The turn after the environment's answer; None if the episode is over."""
        if not self._goes_on(episode):
            return None
        conversation = episode.conversation
        tokens = (*conversation.prompt.token_ids, *conversation.token_ids)
        continuation = Continuation(*conversation.stream, max_tokens=conversation.room)
        return NextTurn(replace(conversation.prompt, token_ids=tokens), continuation)

    def _goes_on(self, episode: PlayedEpisode) -> bool:
        """Add what the environment answered; False if the episode is over."""
        try:
            observation = episode.answer.result()
        except EnvironmentFailure as error:
            self._fail(episode, str(error))
            return False
        except RefusedAction as error:
            return self._malformed(episode, str(error))
        is_first = episode.conversation.turns == 0
        return self._begin(episode, observation) if is_first else self._continue(episode, observation)

    def _begin(self, episode: PlayedEpisode, observation: Observation) -> bool:
        conversation = episode.conversation
        place, before = conversation.place, len(conversation.prompt.token_ids)
        if observation.done:
            self._fail(episode, "the episode was over after reset")
            return False
        if self.first.setdefault(place, observation.text) != observation.text:
            reason = "reset gave another first observation than for others of the group, with the same seed"
            self._fail(episode, f"{reason} {episode.seed}")
            return False
        if observation.text and self.prompts[place] is conversation.prompt:
            self.prompts[place] = self.sampler.reader.with_observation(
                conversation.prompt, observation.text, self.sampler.renderer.plain
            )
        conversation.prompt = self.prompts[place]
        conversation.limit -= len(conversation.prompt.token_ids) - before
        if conversation.limit < 1:
            self._fail(episode, "the first observation leaves no room in max_completion_tokens")
            return False
        return True

    def _continue(self, episode: PlayedEpisode, observation: Observation) -> bool:
        episode.add(observation)
        conversation = episode.conversation
        if observation.done:
            self._end(episode, FinishReason.STOP)
            return False
        ids = None
        if conversation.turns < episode.options.max_turns:
            ids = self.sampler.renderer.render_message(
                observation.text, last_token=conversation.token_ids[-1], room=conversation.room - 1
            )
        if ids is None:
            self._end(episode, FinishReason.LENGTH)
            return False
        conversation.add_answers(ids)
        return True

    def _malformed(self, episode: PlayedEpisode, reason: str) -> bool:
        error = Observation(f"Error: {reason}", None, done=False)
        if episode.options.malformed_action == "observe":
            return self._continue(episode, error)
        episode.add(error)
        self._end(episode, FinishReason.STOP)
        return False

    def _act(self, turn: NextTurn, completion: Completion) -> None:
        """Send a turn to the environment; a turn that was cut ends the episode."""
        episode = self.by_stream[turn.continuation.stream[:2]]
        episode.conversation.add_turn(completion)
        if completion.finish_reason is FinishReason.LENGTH:
            self._end(episode, FinishReason.LENGTH)
            return
        try:
            text = self.sampler.policy.turn_text(completion.token_ids)
            action = self.sampler.actions[episode.name].read(text)
        except MalformedAction as error:
            refused: Future[Observation] = Future()
            refused.set_exception(RefusedAction(str(error)))
            self._wait(episode, refused)
        else:
            self._wait(episode, self.portal.start_task_soon(episode.session.step, action))

    def _fail(self, episode: PlayedEpisode, reason: str) -> None:
        episode.failure = reason
        self._end(episode, FinishReason.LENGTH)

    def _end(self, episode: PlayedEpisode, reason: FinishReason) -> None:
        self.portal.start_task_soon(episode.session.close)
        conversation, version = episode.conversation, self.sampler.version
        if conversation.turns:
            completion = conversation.completion(self.sampler.policy, reason)
        else:
            completion = Completion("", (), (), reason, version)
        completion = replace(completion, episode=episode.record())
        self.groups.add(conversation.place, conversation.sample, completion)


def task_seed(sampling: Sampling, row: int, prompt: int) -> int:
    """Seed of a group's `reset`: new in each step, except in evaluations, which compare the same tasks."""
    name = f"environment/{sampling.seed}/{row}" + (
        "" if sampling.same_tasks else f"/{sampling.step}/{prompt}"
    )
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest()) & 0x7FFFFFFF
