"""Agents that send several requests of a rollout at the same time, as those with sub-agents do."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import openai

from grpo_engine.models.policy import Policy
from grpo_engine.rollout.sampler.base import NextTurn, OnTurn, Sampling
from grpo_engine.rollout.sampler.turns import TurnQueue
from tests.engine.rollout.agents.conftest import Run, chat
from tests.engine.rollout.tools.scripted_sampler import ScriptedSampler

PARALLEL = 2


@dataclass
class InPairs(ScriptedSampler):
    """Answers turns once two of them are open."""

    def sample_turns(self, turns: TurnQueue, sampling: Sampling, on_turn: OnTurn) -> None:
        opened: list[NextTurn] = []
        while new := turns.wait():
            opened += new
            while len(opened) >= PARALLEL:
                for turn in reversed(opened[:PARALLEL]):
                    limit = turn.continuation.max_tokens
                    on_turn(turn, self._completion(turn.continuation.stream, limit))
                del opened[:PARALLEL]


def with_sub_agents(client: openai.OpenAI, asked: dict[str, Any]) -> float:
    def work(name: str) -> list[str]:
        messages: list[Any] = [{"role": "user", "content": name}]
        for turn in range(2):
            messages += [chat(client, messages).message, {"role": "user", "content": f"{name} {turn}"}]
        return [each.content for each in messages[1::2]]

    with ThreadPoolExecutor(PARALLEL) as pool:
        said = list(pool.map(work, ("left", "right")))
    assert len({text for each in said for text in each}) == 2 * PARALLEL, "each turn has its own stream"
    return 1.0


def test_requests_of_different_conversations_are_sampled_together(run: Run, make_policy: Any) -> None:
    policy: Policy = make_policy()
    (group,) = run(with_sub_agents, InPairs(policy, lambda stream: f"turn {stream[2]}"), timeout_seconds=120)
    (completion,) = group.completions
    assert (completion.failure, completion.turns, len(completion.row_starts)) == (None, 4, 1)
    assert completion.num_sampled == 4 * (len("turn 0") + 1)
    assert completion.episode is not None
    turns = {each.action: each.observation for each in completion.episode.turns}
    assert sorted(turns) == [f"turn {number}" for number in range(4)]
    assert sorted(turns.values()) == ["", "", "left 0", "right 0"]
