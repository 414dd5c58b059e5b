"""The rollouts of one sampling: their agents' requests become turns, and turns become answers.

Everything here except `_run_agent` runs in the sampling thread, which alone uses the tokenizer.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from grpo_engine.chat.protocol import Answer, Generate, Piece, Refused, Token, Usage
from grpo_engine.objective.types import Completion
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.rollout.agents.agent_answer import AgentFailure, run_agent
from grpo_engine.rollout.agents.completion_server import CompletionServer
from grpo_engine.rollout.agents.dialogue import Dialogue
from grpo_engine.rollout.agents.rollout import AgentRollout, PendingRequest
from grpo_engine.rollout.agents.shared_prompt import shared_tokens, trained_rows
from grpo_engine.rollout.environments.sampler import Rollouts
from grpo_engine.rollout.sampler.base import Continuation, NextTurn
from grpo_engine.rollout.tools.answered import text_and_calls
from grpo_engine.rollout.tools.calls import CallReader

if TYPE_CHECKING:
    from grpo_engine.rollout.agents.agents import Agents

START_DIFFERENTLY = (
    "the conversations of its group start with different tokens: let all start with the same role"
)
THREAD = "agent"
"""Name of the threads that wait for agents."""


class Conversations:
    """The rollouts of one `generate`."""

    def __init__(self, agents: Agents, server: CompletionServer, rollouts: Rollouts) -> None:
        """Start all agents; a turn is sampled as soon as it is requested."""
        self.agents, self.server, self.queue = agents, server, rollouts.queue
        self.sampling, self.groups, self.prompts = rollouts.sampling, rollouts.groups, rollouts.prompts
        self.version = rollouts.version
        self.queue.longest = max(self.queue.longest, agents.context)
        self._open: dict[tuple[int, int, int], PendingRequest] = {}
        """Requests whose turns are being sampled, by the turn's stream."""
        self.has_ended = False
        """Whether sampling has ended, so that no further rollout is started."""
        self.rollouts = [
            self._rollout(rollouts, place, sample)
            for place in rollouts.places
            for sample in range(rollouts.groups.group_size)
        ]
        world = Ranks.current().world
        places = {
            name: threading.Semaphore(max(1, each.concurrency // world))
            for name, each in agents.environments.items()
        }
        for each in self.rollouts:
            ended: Future[float | None] = Future()
            self.queue.put_after(partial(self._end, each, ended), [ended])
            given = each, places[each.name], ended
            threading.Thread(target=self._run_agent, args=given, name=THREAD, daemon=True).start()

    def _rollout(self, rollouts: Rollouts, place: int, sample: int) -> AgentRollout:
        prompt, (number, sample, _) = self.prompts[place], self.sampling.stream(place, sample)
        name, agents = str(prompt.item["environment"]), self.agents
        return AgentRollout(
            name,
            agents.environments[name],
            prompt,
            place,
            (number, sample),
            rollouts.task_seed(prompt, number),
            Dialogue(agents.reader, agents.renderer, agents.context, self.sampling.max_tokens),
        )

    def _run_agent(
        self, rollout: AgentRollout, places: threading.Semaphore, ended: Future[float | None]
    ) -> None:
        """Wait for a place and for the agent; in a thread of its own."""

        def submit(request: Generate) -> Future[Answer]:
            rollout.has_started = True
            pending = PendingRequest(rollout, request)
            self.queue.put(partial(self._take, pending))
            return pending.answer

        with places:
            if self.has_ended:
                return
            key = self.server.admit(submit, rollout.options.max_turns)
            try:
                reward = run_agent(rollout.options, self._task(rollout, key), lambda: rollout.has_started)
            except Exception as error:  # noqa: BLE001 - raised in the sampling thread, which waits for the end
                self.server.revoke(key)
                ended.set_exception(error)
            else:
                self.server.revoke(key)
                ended.set_result(reward)

    def _task(self, rollout: AgentRollout, key: str) -> dict[str, Any]:
        """The body of the request to the agent."""
        prompt = rollout.prompt
        question = (
            {"messages": prompt.conversation["messages"]} if prompt.conversation else {"prompt": prompt.text}
        )
        number, sample = rollout.stream
        return {
            "base_url": self.server.url,
            "api_key": key,
            "model": "policy",
            "task": {**prompt.item, **question},
            "metadata": {
                "environment": rollout.name,
                "seed": rollout.seed,
                "step": self.sampling.step,
                "group": number,
                "sample": sample,
            },
        }

    def _take(self, pending: PendingRequest) -> NextTurn | None:
        """The turn that answers a request; None if it is refused."""
        try:
            return self._turn(pending)
        except Refused as error:
            pending.rollout.refusal = str(error)
            pending.answer.set_exception(error)
            return None

    def _turn(self, pending: PendingRequest) -> NextTurn:
        """Raises Refused."""
        rollout, request = pending.rollout, pending.request
        if rollout.is_over:
            raise Refused("rollout_over", "The rollout is over.")
        if request.messages is None or request.n != 1:
            message = "A rollout is one conversation: use chat completions with n = 1."
            raise Refused("invalid_value", message, "messages" if request.messages is None else "n")
        if not set(request.stop) <= set(self.sampling.stop):
            raise Refused("invalid_value", "Set stop in the job's hyperparameters.", "stop")
        row = rollout.dialogue.row_for(request.messages, request.tools)
        rollout.follow(row, request.messages)
        room = rollout.dialogue.room(row)
        pending.row, pending.is_cut_by_agent = row, (request.max_tokens or room) < room
        continuation = Continuation(
            *rollout.stream, turn=rollout.num_opened, max_tokens=min(room, request.max_tokens or room)
        )
        rollout.num_opened += 1
        self._open[continuation.stream] = pending
        return NextTurn(replace(rollout.prompt, token_ids=tuple(row.token_ids)), continuation)

    def answer(self, turn: NextTurn, completion: Completion) -> None:
        """Answer the request of a sampled turn; a rollout that is over keeps what it had."""
        pending = self._open.pop(turn.continuation.stream)
        rollout, request, policy = pending.rollout, pending.request, self.agents.policy
        if rollout.is_over:
            pending.answer.set_exception(Refused("rollout_over", "The rollout is over."))
            return
        reader = CallReader(self.agents.format, request.tools) if request.tools else None
        text, calls = text_and_calls(policy, reader, completion.token_ids)
        tokens = (
            Token(text=policy.decode([token]), logprob=logprob)
            for token, logprob in zip(completion.token_ids, completion.logprobs, strict=True)
        )
        piece = Piece(
            index=0,
            text=text,
            tokens=tuple(tokens) if request.logprobs else (),
            calls=calls,
            finish_reason=completion.finish_reason,
        )
        rollout.add_turn(pending, completion, text, calls, policy.turn_text(completion.token_ids))
        usage = Usage(prompt_tokens=len(turn.prompt.token_ids), completion_tokens=completion.num_tokens)
        pending.answer.set_result(Answer(pieces=(piece,), usage=usage))

    def _end(self, rollout: AgentRollout, ended: Future[float | None]) -> None:
        """Close a rollout, and add its group once all of the group's are closed. Raises an error that is not
        the agent's."""
        rollout.is_over = True
        try:
            rollout.reward = ended.result()
        except AgentFailure as error:
            rollout.failure = str(error)
        if rollout.last is None and rollout.failure is None:
            why = f"; its last request was refused: {rollout.refusal}" if rollout.refusal else ""
            rollout.failure = f"the agent ended without a completion{why}"
        group = [each for each in self.rollouts if each.place == rollout.place]
        if all(each.is_over for each in group):
            self._add(group)

    def _add(self, group: Sequence[AgentRollout]) -> None:
        rows = [trained_rows(each.dialogue.rows) for each in group]
        every = [row for own in rows for row in own]
        start = shared_tokens(every)
        place = group[0].place
        if start:
            shared = tuple(every[0].token_ids[:start])
            self.prompts[place] = replace(self.prompts[place], token_ids=shared)
        for rollout, own in zip(group, rows, strict=True):
            if own and not start:
                rollout.failure = START_DIFFERENTLY
            completion = rollout.completion(self.agents.policy, own if start else (), start, self.version)
            self.groups.add(place, rollout.stream[1], completion)
