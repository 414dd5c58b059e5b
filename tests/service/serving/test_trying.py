"""Runs the commands of docs/read-a-run/trying.md against a service with a worker."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.settings import Settings
from tests.service.embedded import ROOT, environment
from tests.service.job_samples import make_model
from tests.service.serving.answering import answering

GUIDE = (ROOT / "docs" / "read-a-run" / "trying.md").read_text()
BLOCKS = re.findall(r"```(sh|python)\n(.*?)```", GUIDE, re.DOTALL)
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
ANSWER = "Base: What is 12+3?"


@pytest.fixture
def given(settings: Settings, server_url: str, api_key: str) -> Iterator[dict[str, str]]:
    make_model(settings.home)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with answering(settings):
        yield environment(settings.home, GRPO_URL=server_url, GRPO_API_KEY=api_key, PATH=path)


def test_every_example_of_the_guide_gives_the_same_answer(given: dict[str, str]) -> None:
    printed = []
    for language, block in BLOCKS:
        command = ["bash", "-euc", block] if language == "sh" else [sys.executable, "-c", block]
        done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout.strip())
    command_line, over_http, by_client = printed
    assert json.loads(over_http)["choices"][0]["message"]["content"] == ANSWER
    assert (command_line, by_client) == (ANSWER, ANSWER)
