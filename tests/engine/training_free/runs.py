"""Helpers of training-free tests: a run's events and its result."""

from pathlib import Path
from typing import Any

from grpo_engine.config.job import RunConfig
from grpo_engine.contract.events import BaseEvent, Finished
from grpo_engine.run.build import build_loop


def run(config: RunConfig, run_dir: Path) -> list[BaseEvent]:
    return list(build_loop(config, run_dir).run(lambda: False))


def of(events: list[BaseEvent], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def artifact(events: list[BaseEvent], run_dir: Path) -> Path:
    (finished,) = of(events, Finished)
    return run_dir / finished.path
