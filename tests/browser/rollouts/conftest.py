"""Jobs whose rollouts are written by hand."""

import pytest

from service.platform.db import connect
from tests.browser.deployment import Deployment, questions
from tests.browser.rollouts.pages import HOSTILE
from tests.service.job_samples import upload
from tests.service.rollouts.rollout_samples import (
    EPISODES,
    TOOL_TURNS,
    add_group,
    as_message,
    completion,
    scored,
)


@pytest.fixture(scope="module")
def hostile(deployment: Deployment) -> str:
    """A waiting job with rollouts of two splits that contain markup."""
    job_id = deployment.create(upload(deployment.client, questions()), suffix="hostile")
    database = connect(deployment.api.settings)
    error = {"accuracy": {"code": "other_error", "message": HOSTILE}}
    tests = {"accuracy": [{"label": HOSTILE, "passed": False, "got": HOSTILE, "expected": "1"}]}
    completions = [
        scored(HOSTILE, None, 1.0, errors=error, explanations=tests),
        scored("plain", -0.5, 0.0),
        scored("good", 1.0, 1.0),
    ]
    add_group(database, job_id, 1, 0, completions, reference={"answer": HOSTILE})
    add_group(database, job_id, 1, 0, [scored("held out", 1.0, 1.0)], split="validation", row=3)
    database.engine.dispose()
    return job_id


@pytest.fixture(scope="module")
def long_text(deployment: Deployment) -> str:
    """A waiting job with two long completions."""
    job_id = deployment.create(upload(deployment.client, questions()), suffix="long-text")
    database = connect(deployment.api.settings)
    add_group(database, job_id, 1, 0, [scored("word " * 3000, 1.0, 1.0), scored("line\n" * 90, 0.0, 0.0)])
    database.engine.dispose()
    return job_id


@pytest.fixture(scope="module")
def turns(deployment: Deployment) -> str:
    """A waiting job with a group of episodes and a group that called tools."""
    job_id = deployment.create(upload(deployment.client, questions()), suffix="turns")
    database = connect(deployment.api.settings)
    add_group(database, job_id, 1, 0, EPISODES, **as_message("Guess the word. It has five letters."))
    add_group(database, job_id, 1, 1, [completion(1.0, turns=3, tool_turns=TOOL_TURNS)] * 2)
    database.engine.dispose()
    return job_id
