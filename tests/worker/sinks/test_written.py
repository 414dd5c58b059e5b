"""The local files of each sink, written by sink processes and read by the sink's own reader.

One job has all three sinks. Their processes are killed while they write, and new ones continue.
"""

import json
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from service.jobs.model.states import JobState
from service.platform.db import Database, connect
from service.settings import Settings
from tests.conftest import settings_for
from tests.support.servers import wait_until
from tests.worker.sinks.samples import (
    MLFLOW,
    TENSORBOARD,
    WANDB,
    add_job,
    claim,
    end,
    environment,
    make_due,
    make_steps,
    reward,
    rows_of,
    start,
    wait_for,
)
from worker.sinks.wandb_files import BLOCK_BYTES, HEADER_BYTES, messages, newest_step, records, rows

pytestmark = pytest.mark.filterwarnings(
    "ignore::sqlalchemy.exc.SADeprecationWarning"  # in MLflow's own statements
)
Points = list[tuple[int, float]]
KINDS = ("mlflow", "tensorboard", "wandb")


@dataclass(frozen=True)
class Written:
    """A finished job that all sinks have written."""

    settings: Settings
    database: Database
    job_id: str
    logs: tuple[str, ...]
    """Logs of the processes that were not killed."""


@pytest.fixture(scope="module")
def written(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    settings = settings_for(tmp_path_factory.mktemp("sinks") / "home")
    settings.home.mkdir()
    (settings.home / "grpo.db").write_bytes(sqlite_template.read_bytes())
    database = connect(settings)
    job_id = add_job(database, WANDB, TENSORBOARD, MLFLOW, steps=7)
    _write_and_kill(settings, database, job_id)
    make_steps(database, job_id, 10, 12)
    end(database, job_id, JobState.FAILED)
    make_due(database, job_id)
    processes = [start(found, environment(settings)) for found in _claims(database)]
    logs = tuple(wait_for(process) for process in processes)
    yield Written(settings, database, job_id, logs)
    database.engine.dispose()


def _claims(database: Database) -> list[Any]:
    return [claim(database) for _ in KINDS]


def _write_and_kill(settings: Settings, database: Database, job_id: str) -> None:
    """Let the sinks write six of seven steps, then two more, and kill their processes."""
    with ExitStack() as stack:
        processes = [stack.enter_context(start(found, environment(settings))) for found in _claims(database)]
        for last in (7, 9):
            make_steps(database, job_id, last, last)
            rows = rows_of(database, job_id)
            wait_until(lambda last=last: _all_are_at(database, job_id, last - 1), 300, f"written: {rows}")
            make_steps(database, job_id, last + 1, last + 1)
        for process in processes:
            process.send_signal(signal.SIGKILL)


def _all_are_at(database: Database, job_id: str, step: int) -> bool:
    return {row.step for row in rows_of(database, job_id).values()} == {step}


def of_tensorboard(written: Written, name: str) -> Points:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(written.settings.home / "tensorboard" / "acme" / written.job_id))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def mlflow_run(written: Written) -> tuple[Any, Any]:
    """The client and the only run of the job."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{written.settings.home}/mlflow.db")
    experiment = client.get_experiment_by_name("sums")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id], f"tags.`grpo.job_id` = '{written.job_id}'")
    return client, run


def of_mlflow(written: Written, name: str) -> Points:
    client, run = mlflow_run(written)
    return sorted((one.step, one.value) for one in client.get_metric_history(run.info.run_id, name))


def wandb_files(written: Written) -> list[Path]:
    return sorted(written.settings.home.glob(f"wandb/offline-run-*/run-{written.job_id}.wandb"))


def of_wandb(written: Written, name: str) -> Points:
    logged = [row for file in wandb_files(written) for row in rows(file)]
    return [(int(row["_step"]), row[name]) for row in logged if name in row]


READ: dict[str, Callable[[Written, str], Points]] = {
    "mlflow": of_mlflow,
    "tensorboard": of_tensorboard,
    "wandb": of_wandb,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_process_loses_and_repeats_no_step(written: Written, kind: str) -> None:
    assert READ[kind](written, "reward") == [(step, reward(step)) for step in range(1, 13)]
    assert len(READ[kind](written, "rewards/a.b/mean")) == 12


@pytest.mark.parametrize("kind", KINDS)
def test_evaluations_have_their_steps_and_the_baseline_has_step_zero(written: Written, kind: str) -> None:
    expected = [(0, 0.25), (5, 2 * reward(5)), (10, 2 * reward(10))]
    assert READ[kind](written, "eval/reward") == expected


def test_all_sinks_of_a_finished_job_are_done(written: Written) -> None:
    rows = rows_of(written.database, written.job_id).values()
    assert {(row.state, row.step, row.due_at, row.reason) for row in rows} == {("done", 12, None, "")}


def test_no_package_writes_to_the_worker_s_log(written: Written) -> None:
    lines = [json.loads(line) for log in written.logs for line in log.splitlines()]
    assert [line for line in lines if line["level"] not in ("info", "debug")] == []


def test_mlflow_has_one_run_with_the_settings_and_the_outcome(written: Written) -> None:
    _, run = mlflow_run(written)
    assert (run.info.status, run.info.run_name) == ("FAILED", written.job_id)
    shown = {name: run.data.params[name] for name in ("model", "method", "group_size", "seed")}
    assert shown == {"model": "tiny", "method": "reinforcement", "group_size": "2", "seed": "7"}


def test_wandb_has_the_project_the_name_the_tags_and_the_job_s_id(written: Written) -> None:
    (run,) = messages(wandb_files(written)[-1], "run")
    assert (run.project, run.display_name, list(run.tags)) == ("sums", "a run", ["t"])
    assert run.run_id == written.job_id
    config = {item.key: item.value_json for item in run.config.update}
    assert config["group_size"] == "2"


def test_wandb_records_the_failure_of_the_job(written: Written) -> None:
    (ending,) = messages(wandb_files(written)[-1], "exit")
    assert ending.exit_code == 1


def test_a_truncated_wandb_file_is_read_up_to_its_last_complete_record(
    written: Written, tmp_path: Path
) -> None:
    file = wandb_files(written)[-1]
    content, steps = file.read_bytes(), [int(row["_step"]) for row in rows(file)]
    torn = tmp_path / "wandb" / f"offline-run-1-{written.job_id}" / f"run-{written.job_id}.wandb"
    torn.parent.mkdir(parents=True)
    found = []
    for num_bytes in range(0, len(content), 97):
        torn.write_bytes(content[:num_bytes])
        found.append(newest_step(tmp_path, written.job_id))
    assert found == sorted(found)
    assert len(steps) > 2
    assert set(found) >= {-1, *steps[:-1]}


def test_records_across_blocks_are_joined(tmp_path: Path) -> None:
    """Blocks are cut as in LevelDB's log format."""
    long = bytes(range(256)) * 300
    first, rest = long[: BLOCK_BYTES - 2 * HEADER_BYTES], long[BLOCK_BYTES - 2 * HEADER_BYTES :]
    second, last = rest[: BLOCK_BYTES - HEADER_BYTES], rest[BLOCK_BYTES - HEADER_BYTES :]
    pieces = [(2, first), (3, second), (4, last), (1, b"short")]
    content = b":W&B" + bytes(3) + b"".join(struct.pack("<IHB", 0, len(p), kind) + p for kind, p in pieces)
    assert list(records(content)) == [long, b"short"]
