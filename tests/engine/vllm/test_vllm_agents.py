"""Black-box agents on vLLM."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import openai

from grpo_engine.models.policy import Policy
from tests.engine.rollout.agents.conftest import SAMPLING, Run, chat, prompts, run

__all__ = ["run"]
FIRST_TOKENS = 12
"""Maximum tokens of an agent's first turn."""


def test_an_agent_draws_the_tokens_of_a_job_without_one_and_continues_them(
    run: Run, make_policy: Callable[..., Policy], shared_sampler: Callable[..., Any]
) -> None:
    def twice(client: openai.OpenAI, asked: dict[str, Any]) -> float:
        messages = asked["task"]["messages"]
        said = chat(client, messages, max_tokens=FIRST_TOKENS, temperature=0.0).message
        chat(client, [*messages, said, {"role": "user", "content": "Again."}])
        return 0.5

    sampler = shared_sampler()
    alone = replace(SAMPLING, max_tokens=FIRST_TOKENS)
    (expected,) = sampler.generate(prompts(make_policy()), 3, alone)
    (found,) = run(twice, sampler, group_size=3, sampling=replace(SAMPLING, max_tokens=40))
    assert found.prompt.token_ids == expected.prompt.token_ids
    for own, other in zip(found.completions, expected.completions, strict=True):
        assert (own.failure, own.turns, own.row_starts) == (None, 2, ())
        assert own.token_ids[: other.num_tokens] == other.token_ids
        assert all(
            (logprob < 0) is sampled for logprob, sampled in zip(own.logprobs, own.sampled, strict=True)
        )
