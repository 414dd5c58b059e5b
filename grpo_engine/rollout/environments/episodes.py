"""The episodes of one sampling: which of them act, which wait, and how each of them ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from anyio.from_thread import BlockingPortal

from grpo_engine.config.environments import OpenEnvEnvironment
from grpo_engine.contract.records import Episode, EpisodeTurn, FinishReason, ToolAnswer
from grpo_engine.objective.types import Completion
from grpo_engine.outbound.addresses import RefusedUrl
from grpo_engine.outbound.openenv import EnvironmentFailure, Observation, RefusedAction, Session, open_session
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.rollout.environments.sampler import MAX_SHOWN_CHARACTERS, Rollouts
from grpo_engine.rollout.sampler.base import NextTurn
from grpo_engine.rollout.tools.calls import ToolCall
from grpo_engine.rollout.tools.conversation import Conversation
from grpo_engine.rollout.tools.toolbox import OpenToolbox

if TYPE_CHECKING:
    from grpo_engine.rollout.environments.servers import OpenEnvServers


NO_OBSERVATION = Observation("", None, done=False)
"""Observation of a turn that called tools, which the environment does not see."""


class RunningEpisode:
    """One completion while it grows. Its session runs in one event loop, from `start` to `close`."""

    def __init__(self, name: str, seed: int, options: OpenEnvEnvironment, conversation: Conversation) -> None:
        self.name, self.seed, self.options, self.conversation = name, seed, options, conversation
        self.turns: list[EpisodeTurn] = []
        self.failure: str | None = None
        self.answer: Future[Observation]
        """The environment's answer to the newest turn or, before the first turn, to the reset."""
        self.session: Session
        self._opened = AsyncExitStack()

    async def start(self, places: asyncio.Semaphore, arguments: Mapping[str, Any]) -> Observation:
        """Wait for a place among the environment's sessions, and reset. Raises EnvironmentFailure."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(places)
            try:
                self.session, first = await open_session(
                    self.options.url, arguments, timeout_seconds=self.options.timeout_seconds
                )
            except RefusedUrl as error:
                raise EnvironmentFailure(f"the address is refused: {error}") from None
            stack.push_async_callback(self.session.close)
            self._opened = stack.pop_all()
        return first

    async def close(self) -> None:
        await self._opened.aclose()

    def add(self, observation: Observation, answers: tuple[ToolAnswer, ...] = ()) -> None:
        """Record what followed the newest turn: an observation, or the answers of tools that it called."""
        self.turns.append(
            EpisodeTurn(
                action=self.conversation.last.text[:MAX_SHOWN_CHARACTERS],
                observation=observation.text[:MAX_SHOWN_CHARACTERS],
                reward=observation.reward,
                done=observation.done,
                answers=answers,
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


class Episodes:
    """The episodes of one `generate`."""

    def __init__(
        self, servers: OpenEnvServers, portal: BlockingPortal, toolbox: OpenToolbox, rollouts: Rollouts
    ) -> None:
        """`portal`: to the thread in which the sessions run."""
        self.servers, self.portal, self.toolbox, self.rollouts = servers, portal, toolbox, rollouts
        self.sampling, self.queue, self.prompts = rollouts.sampling, rollouts.queue, rollouts.prompts
        world = Ranks.current().world
        places = {
            name: asyncio.Semaphore(max(1, each.concurrency // world))
            for name, each in servers.environments.items()
        }
        self.first: dict[int, str] = {}
        """Place of a prompt → its group's first observation."""
        self.episodes = [
            self._episode(place, sample, places)
            for place in rollouts.places
            for sample in range(rollouts.groups.group_size)
        ]
        self.by_stream = {each.conversation.stream[:2]: each for each in self.episodes}

    def _episode(self, place: int, sample: int, places: Mapping[str, asyncio.Semaphore]) -> RunningEpisode:
        prompt = self.prompts[place]
        conversation = Conversation(prompt, place, sample, self.sampling, self.servers.policy.max_length)
        self.queue.longest = max(self.queue.longest, len(prompt.token_ids) + conversation.limit)
        name = str(prompt.item["environment"])
        options = self.servers.environments[name]
        arguments = {"seed": self.rollouts.task_seed(prompt, conversation.number), **options.reset}
        arguments |= prompt.item.get("reset") or {}
        given = arguments["seed"]
        seed = given if isinstance(given, int) else 0
        episode = RunningEpisode(name, seed, options, conversation)
        self._wait(episode, self.portal.start_task_soon(episode.start, places[name], arguments))
        return episode

    def close(self) -> None:
        """End all sessions."""
        for each in self.episodes:  # a session that is being opened would stay open
            each.answer.cancel()
        wait([self.portal.start_task_soon(each.close) for each in self.episodes])

    def _wait(self, episode: RunningEpisode, answer: Future[Observation]) -> None:
        episode.answer = answer
        self.queue.put_after(partial(self._next_turn, episode), [answer])

    def _next_turn(self, episode: RunningEpisode) -> NextTurn | None:
        """The turn after the environment's answer; None if the episode is over."""
        return episode.conversation.next_turn() if self._add_answer(episode) else None

    def _add_answer(self, episode: RunningEpisode) -> bool:
        """Add what the environment answered; False if the episode is over."""
        try:
            observation = episode.answer.result()
            if episode.conversation.turns == 0:
                self._begin(episode.conversation, observation)
                return True
        except EnvironmentFailure as error:
            episode.failure = str(error)
            self._end(episode, FinishReason.LENGTH)
            return False
        except RefusedAction as error:
            return self._malformed(episode, str(error))
        return self._continue(episode, observation)

    def _begin(self, conversation: Conversation, observation: Observation) -> None:
        """Start with the group's prompt, extended by the first observation. Raises EnvironmentFailure."""
        place, before = conversation.place, len(conversation.prompt.token_ids)
        if observation.done:
            raise EnvironmentFailure("the episode was over after reset")
        if self.first.setdefault(place, observation.text) != observation.text:
            reason = "reset gave another first observation than for others of the group, with the same seed"
            raise EnvironmentFailure(reason)
        if observation.text and self.prompts[place] is conversation.prompt:
            plain = partial(self.servers.use.renderer.beginning, room=conversation.limit)
            self.prompts[place] = self.servers.reader.with_observation(
                conversation.prompt, observation.text, plain
            )
        conversation.prompt = self.prompts[place]
        conversation.limit -= len(conversation.prompt.token_ids) - before
        if conversation.limit < 1:
            raise EnvironmentFailure("the first observation leaves no room in max_completion_tokens")

    def _continue(self, episode: RunningEpisode, observation: Observation) -> bool:
        episode.add(observation)
        conversation = episode.conversation
        if observation.done:
            self._end(episode, FinishReason.STOP)
            return False
        ids = None
        if conversation.turns < episode.options.max_turns:
            ids = self.servers.use.renderer.render_message(
                observation.text, last_token=conversation.token_ids[-1], room=conversation.room - 1
            )
        return self._read(episode, ids)

    def _read(self, episode: RunningEpisode, ids: Sequence[int] | None) -> bool:
        """Add the tokens after a turn; None, and the end of the episode, if there is no room for them."""
        if ids is None:
            self._end(episode, FinishReason.LENGTH)
            return False
        episode.conversation.add_given(ids)
        return True

    def _use_tools(self, episode: RunningEpisode, calls: Sequence[ToolCall]) -> None:
        """Run the tool calls of a turn, which is then not an action; calls in an episode's last turn are
        not run."""
        conversation, use = episode.conversation, self.servers.use
        if conversation.turns >= episode.options.max_turns:
            self._end(episode, FinishReason.LENGTH)
            return
        answers = use.start(conversation, calls, self.toolbox, self.sampling)

        def next_turn() -> NextTurn | None:
            ids = use.answer_tokens(conversation)
            episode.add(NO_OBSERVATION, conversation.tool_turns[-1].answers)
            return conversation.next_turn() if self._read(episode, ids) else None

        self.queue.put_after(next_turn, answers)

    def _malformed(self, episode: RunningEpisode, reason: str) -> bool:
        error = Observation(f"Error: {reason}", None, done=False)
        if episode.options.malformed_action == "observe":
            return self._continue(episode, error)
        episode.add(error)
        self._end(episode, FinishReason.STOP)
        return False

    def act(self, turn: NextTurn, completion: Completion) -> None:
        """Send a turn to the environment or to tools; a turn that was cut ends the episode."""
        episode = self.by_stream[turn.continuation.stream[:2]]
        episode.conversation.add_turn(completion)
        if completion.finish_reason is FinishReason.LENGTH:
            self._end(episode, FinishReason.LENGTH)
            return
        if calls := self.servers.use.calls_of_tools(completion):
            self._use_tools(episode, calls)
            return
        try:
            text = self.servers.policy.turn_text(completion.token_ids)
            action = self.servers.actions[episode.name].read(text)
        except RefusedAction as error:
            refused: Future[Observation] = Future()
            refused.set_exception(error)
            self._wait(episode, refused)
        else:
            self._wait(episode, self.portal.start_task_soon(episode.session.step, action))

    def _end(self, episode: RunningEpisode, reason: FinishReason) -> None:
        self.portal.start_task_soon(episode.close)
        conversation = episode.conversation
        self.toolbox.end(conversation.rollout)
        if conversation.turns:
            completion = conversation.completion(self.servers.policy, reason)
        else:
            completion = Completion("", (), (), reason, self.rollouts.version)
        completion = replace(completion, episode=episode.record(), tool_turns=())
        self.rollouts.groups.add(conversation.place, conversation.sample, completion)
