"""Trackers of Axolotl's and verl's configurations."""

from typing import Any

import pytest

from tests.service.importing.test_others import axolotl, hyperparameters, verl


@pytest.mark.parametrize(
    ("given", "sinks"),
    [
        ({"wandb_project": "sums", "wandb_entity": "team", "wandb_name": "a"},
         [{"type": "wandb", "wandb": {"project": "sums", "entity": "team", "name": "a"}}]),
        ({"use_tensorboard": True, "mlflow_experiment_name": "m"},
         [{"type": "tensorboard"}, {"type": "mlflow"}]),
        ({"wandb_project": "", "use_mlflow": False}, None),
    ],
)  # fmt: skip
def test_axolotl_s_trackers_become_the_job_s_sinks(given: dict[str, Any], sinks: object) -> None:
    assert axolotl(**given).job.get("integrations") == sinks


@pytest.mark.parametrize(
    ("logger", "sinks"),
    [
        (["console", "wandb"], [{"type": "wandb", "wandb": {"project": "sums", "name": "a"}}]),
        ("tensorboard", [{"type": "tensorboard"}]),
        ("console", None),
        (None, None),
    ],
)
def test_verl_s_loggers_become_the_job_s_sinks(logger: object, sinks: object) -> None:
    dotted = {"trainer.logger": logger, "trainer.project_name": "sums", "trainer.experiment_name": "a"}
    found = verl(**dotted)
    hyperparameters(found)
    assert found.job.get("integrations") == sinks
