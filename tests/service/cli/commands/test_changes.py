"""`grpo retry --set`: fields by their own names, and clear errors for those that cannot be resolved."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.cli.changes import patch_of
from service.cli.terminal.errors import CommandError
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.cli.command import Grpo
from tests.service.files.file_samples import uploaded
from tests.service.job_samples import create, make_model

pytestmark = on_sqlite


def hyperparameters(**values: Any) -> dict[str, Any]:
    return {"method": {"reinforcement": {"hyperparameters": values}}}


def test_a_retried_job_differs_only_in_what_was_set(
    grpo: Grpo, client: TestClient, settings: Settings
) -> None:
    make_model(settings.home)
    first = create(client, uploaded(client), metadata={"a": "b"})
    changes = ("method.reinforcement.hyperparameters.beta=0.1", "suffix=second", "metadata=null")
    again = json.loads(grpo("retry", first["id"], *(f"--set={change}" for change in changes), "--json"))
    assert again["method"]["reinforcement"]["hyperparameters"]["beta"] == 0.1
    assert (again["suffix"], again["metadata"], again["seed"]) == ("second", None, first["seed"])


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999", "[" * 10**5])
def test_a_value_that_is_not_json_is_text(value: str) -> None:
    assert patch_of([f"name={value}"]) == {"name": value}


@pytest.mark.parametrize("change", ["beta", "=1", "a..b=1", "a=1,a.b=2"])
def test_a_change_without_a_field_is_one_clear_error(change: str) -> None:
    with pytest.raises(CommandError, match="--set "):
        patch_of(change.split(","))


def test_retry_understands_the_names_of_fields(grpo: Grpo, client: TestClient, settings: Settings) -> None:
    make_model(settings.home)
    first = create(client, uploaded(client))
    again = json.loads(grpo("retry", first["id"], "--set", "n_steps=5", "--set", "suffix=short", "--json"))
    assert again["method"]["reinforcement"]["hyperparameters"]["n_steps"] == 5
    assert again["suffix"] == "short"
    refused = grpo.run("retry", first["id"], "--set", "n_step=5")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "code=unknown_field" in refused.stderr
    assert "did you mean method.reinforcement.hyperparameters.n_steps" in refused.stderr


@pytest.mark.parametrize(
    ("change", "patch"),
    [
        ("n_steps=5", hyperparameters(n_steps=5)),
        ("max_steps=5", hyperparameters(max_steps=5)),
        ("lora.rank=8", hyperparameters(lora={"rank": 8})),
        ("rank=8", hyperparameters(lora={"rank": 8})),
        ("hyperparameters.top_k=4", hyperparameters(top_k=4)),
        ("grader.reference=x", {"method": {"reinforcement": {"grader": {"reference": "x"}}}}),
        ("gpus=2", {"resources": {"gpus": 2}}),
        ("metadata.owner=me", {"metadata": {"owner": "me"}}),
        ("model=tiny", {"model": "tiny"}),
        ("method.type=supervised", {"method": {"type": "supervised"}}),
    ],
)
def test_the_end_of_a_field_s_place_is_enough(change: str, patch: dict[str, Any]) -> None:
    assert patch_of([change], "reinforcement") == patch


def test_an_ambiguous_name_lists_the_places_it_could_mean() -> None:
    with pytest.raises(CommandError, match="--set endpoint could be") as found:
        patch_of(["endpoint=x"], "training_free")
    for group in ("rollouts", "reflection"):
        assert f"method.training_free.hyperparameters.{group}.endpoint" in found.value.message
    assert found.value.code == "ambiguous_field"


def test_a_field_of_another_method_is_unknown() -> None:
    for change in ("group_size=4", "beta=1", "kl_beta=1"):
        with pytest.raises(CommandError, match="the job has no such field") as found:
            patch_of([change], "supervised")
        assert "did you mean" not in str(found.value.hint)
