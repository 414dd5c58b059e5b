"""docs/read-a-run/curves.md names only metrics that a run writes and settings that a job has."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_engine.config.job import RunConfig
from grpo_engine.contract.events import StepFinished
from grpo_engine.contract.records import Episode, FinishReason
from grpo_engine.objective.metrics import episode_metrics
from grpo_engine.objective.types import Completion
from grpo_engine.run.build import build_loop
from grpo_engine.training.machine_usage import MachineUsage
from service.jobs.model.schemas import JobCreate

PAGE = (Path(__file__).parents[3] / "docs" / "read-a-run" / "curves.md").read_text()
OF_GPU = {"system/gpu_percent", "system/gpu_memory_gb"}
"""Written only by a run on a GPU."""
NAME = re.compile(r"[a-z][a-z0-9_<>/]*")
STARTS = {"type": "format", "pattern": "^[0-9]", "match": "search"}
MULTI = {"type": "multi", "graders": {"part": STARTS}, "calculate_output": "part"}


def names_in(text: str) -> set[str]:
    """Names in backticks, such as the setting of `curriculum: "rest"`; no commands."""
    quoted = [each.split(":")[0] for each in re.findall(r"`([^`]+)`", text)]
    return {each for each in quoted if NAME.fullmatch(each)}


@pytest.fixture
def written(make_config: Callable[..., RunConfig], tmp_path: Path) -> set[str]:
    """The metrics of a step with a reference, a grader of parts, and completions of several lengths; and
    those of an episode."""
    sizes = {"prompts_per_step": 8, "group_size": 8, "max_completion_tokens": 30}
    trainer = build_loop(make_config(grader=MULTI, beta=0.1, **sizes), tmp_path)
    (finished,) = [event for event in trainer.method.step(1) if isinstance(event, StepFinished)]
    episode = Episode(environment="<name>", seed=1, reward=1.0)
    played = Completion("", (), (), FinishReason.STOP, 0, episode=episode)
    found = {**finished.metrics, **MachineUsage(None, 0).since_last(0), **episode_metrics([played])}
    return {name.replace("/part/", "/<part>/") for name in found} | OF_GPU


def test_every_metric_in_the_tables_is_written_by_a_run(written: set[str]) -> None:
    cells = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    assert len(cells) > 10
    assert names_in(" ".join(cells)) <= written


def test_every_other_name_is_a_metric_or_a_setting_of_a_job(written: set[str]) -> None:
    schema = json.dumps(JobCreate.model_json_schema())
    unknown = {name for name in names_in(PAGE) - written if f'"{name}"' not in schema}
    assert unknown == set()
