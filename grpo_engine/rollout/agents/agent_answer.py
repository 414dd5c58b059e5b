"""One rollout as a request to its agent, which answers when it has finished.

Boundary: no tokens. The request is repeated only until the agent has requested a first completion.
"""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from grpo_engine.config.environments import AgentEnvironment
from grpo_engine.contract.records import is_reward, refused_reward, storable
from grpo_engine.graders.feedback import excerpt
from grpo_engine.outbound.addresses import RefusedUrl
from grpo_engine.outbound.web import AnswerTooLong, NoAnswer, WebAnswer, post

PAUSE_SECONDS = 0.5
"""Time between two attempts to reach an agent that is full or away."""


class AgentFailure(Exception):
    """The rollout has no result; the message may be shown."""


def run_agent(
    options: AgentEnvironment, request: Mapping[str, Any], has_started: Callable[[], bool]
) -> float | None:
    """The reward that the agent gives, None if it gives none. Raises AgentFailure.

    `has_started`: whether the agent has requested a completion.
    """
    body, headers = json.dumps(request).encode(), {"Content-Type": "application/json"}
    end = time.monotonic() + options.timeout_seconds
    while True:
        left = max(0.001, end - time.monotonic())
        try:
            answer: WebAnswer | None = post(options.url, body, headers, timeout_seconds=left)
            reason = _status(answer) if answer else ""
        except RefusedUrl as error:
            raise AgentFailure(f"the address is refused: {error}") from None
        except AnswerTooLong as error:
            raise AgentFailure(str(error)) from None
        except NoAnswer as error:
            answer, reason = None, str(error)
        if answer is not None and 200 <= answer.status < 300:
            return reward_in(answer.body)
        is_temporary = answer is None or answer.is_temporary_error
        if not is_temporary or has_started() or time.monotonic() + PAUSE_SECONDS > end:
            raise AgentFailure(reason)
        time.sleep(PAUSE_SECONDS)


def reward_in(body: bytes) -> float | None:
    """The field `reward` of an agent's answer. Raises AgentFailure."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise AgentFailure(f"the agent's answer is not a JSON object: {_quoted(body)}")
    reward = answer.get("reward")
    if reward is None:
        return None
    if isinstance(reward, int | float) and not isinstance(reward, bool):
        with suppress(OverflowError):
            if is_reward(number := float(reward)):
                return number
    raise AgentFailure(refused_reward(reward))


def _status(answer: WebAnswer) -> str:
    return f"the agent answered with status {answer.status}: {_quoted(answer.body)}"


def _quoted(body: bytes) -> str:
    """The start and the end of an answer."""
    return excerpt(storable(body.decode("utf-8", "replace")))
