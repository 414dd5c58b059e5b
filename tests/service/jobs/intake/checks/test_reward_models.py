"""Reward models that a grader names: entries of the catalogue, never paths, whose files can be used."""

import pytest
from fastapi.testclient import TestClient

from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.job_samples import make_model, reinforcement
from tests.service.jobs.intake.test_machine import WHERE, problems

pytestmark = [on_sqlite, pytest.mark.usefixtures("model")]


def test_a_reward_model_is_a_name_of_the_catalogue_and_never_a_path(client: TestClient) -> None:
    assert problems(client, reinforcement({"type": "reward_model", "model": "tiny"})) == []
    ((place, message),) = problems(client, reinforcement({"type": "reward_model", "model": "absent"}))
    assert (place, "not in the model catalogue" in message) == (f"{WHERE}.model", True)
    given = {"type": "reward_model", "model": "tiny", "path": "/etc", "revision": "main"}
    found = problems(client, reinforcement({"type": "process", "grader": given}))
    assert [place for place, _ in found] == [f"{WHERE}.grader.path", f"{WHERE}.grader.revision"]


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        (
            "config.json",
            '{"architectures": ["Qwen3ForCausalLM"]}',
            "is not a reward model: it is a Qwen3ForCausalLM, and a reward model classifies sequences",
        ),
        (
            "config.json",
            '{"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "no", "1": "yes"}}',
            "is not a reward model: it has 2 labels instead of one",
        ),
        ("config.json", "{", "cannot be loaded: config.json cannot be read: Expecting"),
        ("pytorch_model.bin", "", "cannot be loaded: its weights are in pytorch_model.bin"),
        ("config.json", '{"architectures": ["X1ForSequenceClassification"], "id2label": {"0": "r"}}', None),
    ],
)
def test_a_model_that_cannot_be_a_reward_model_is_refused(
    client: TestClient, settings: Settings, file: str, content: str, reason: str | None
) -> None:
    (make_model(settings.home, "liked") / file).write_text(content)
    found = problems(client, reinforcement({"type": "reward_model", "model": "liked"}))
    assert [place for place, _ in found] == ([] if reason is None else [f"{WHERE}.model"])
    assert reason is None or found[0][1].startswith(f"{WHERE}.model: {reason}")
