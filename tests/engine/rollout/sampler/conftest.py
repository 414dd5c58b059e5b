"""A policy whose completions end unevenly, for tests of the sampler's rows."""

from collections.abc import Callable

import pytest

from grpo_engine.models.policy import Policy

STOPS = tuple(range(6, 14))
"""Tokens that end a completion here: of some 90, so rows end unevenly."""


@pytest.fixture(scope="module")
def shared_policy() -> list[Policy]:
    return []


@pytest.fixture
def policy(make_policy: Callable[..., Policy], shared_policy: list[Policy]) -> Policy:
    if not shared_policy:
        shared_policy.append(make_policy())
    return ending(shared_policy[0])


def ending(policy: Policy) -> Policy:
    policy.stop_set = frozenset(STOPS)
    return policy
