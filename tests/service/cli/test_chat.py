"""`grpo chat`; a conversation is a process whose input ends."""

import json
import subprocess
from collections.abc import Iterator

import pytest

from service.jobs.model.states import JobState
from service.platform.db import Database
from service.settings import Settings
from tests.service.embedded import GRPO, call_grpo, environment
from tests.service.job_samples import add_artifact, add_job, make_model
from tests.service.serving.answering import answering
from tests.service.serving.test_chat import archive

__all__ = ["archive"]

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def given(settings: Settings, server_url: str, api_key: str) -> Iterator[dict[str, str]]:
    """The command's environment, with a running service and chat worker."""
    make_model(settings.home)
    with answering(settings):
        yield environment(settings.home, GRPO_URL=server_url, GRPO_API_KEY=api_key)


def chat(given: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return call_grpo("chat", *arguments, environment=given)


def test_the_response_is_printed_with_control_characters_escaped(given: dict[str, str]) -> None:
    done = chat(given, "tiny", "hello \x1b[31m there")
    assert (done.returncode, done.stdout) == (0, "Base: hello \\x1b[31m there\n")
    whole = json.loads(chat(given, "tiny", "hello there", "--max-tokens", "2", "--json").stdout)
    assert whole["choices"][0]["message"]["content"] == "Base: hello"


def test_a_conversation_continues_until_the_input_ends(given: dict[str, str]) -> None:
    command = [*GRPO, "chat", "tiny"]
    done = subprocess.run(command, env=given, input="one\ntwo\n", capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.count("Base: one"), done.stdout.count("Base: two")) == (0, 1, 1)


def test_two_models_answer_in_turn(given: dict[str, str], settings: Settings) -> None:
    make_model(settings.home, "other")
    done = chat(given, "tiny", "hello", "--against", "other")
    assert (done.returncode, done.stdout) == (0, "other\nBase: hello\ntiny\nBase: hello\n")
    both = json.loads(chat(given, "tiny", "hello", "--against", "other", "--json").stdout)["data"]
    assert [each["model"] for each in both] == ["other", "tiny"]
    refused = chat(given, "tiny", "hello", "--against", "parent")
    assert refused.returncode == 1
    assert "tiny was not trained here, so it has no parent" in refused.stderr


def test_a_fine_tuned_model_is_compared_with_its_parent(
    given: dict[str, str], settings: Settings, database: Database, archive: bytes
) -> None:
    parent, child = "ft:tiny:tenant-a::parent", "ft:tiny:tenant-a::child"
    for name, model in ((parent, "tiny"), (child, parent)):
        job_id = add_job(database, JobState.SUCCEEDED, model=model, fine_tuned_model=name)
        add_artifact(settings, database, job_id, "adapter", archive)
    done = chat(given, child, "hello", "--against", "parent")
    assert done.stdout == f"{parent}\nAdapter: hello!\n{child}\nAdapter: hello!\n", done.stderr


def test_an_error_is_one_line(given: dict[str, str]) -> None:
    done = chat(given, "nothing", "hello")
    assert (done.returncode, done.stderr) == (
        1,
        "Error: There is no model nothing. [code=model_not_found param=model] "
        "See docs/reference/errors.md#model_not_found\n",
    )
    done = chat(given, "tiny", "die now")
    assert done.returncode == 1
    assert "The model's process ended while it was answering" in done.stderr
