"""Kinds of jobs on a tiny model, and what each shows on the pretended device and on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from grpo_engine.config.job import RunConfig
from grpo_engine.contract.events import BaseEvent, RolloutsRecorded, StepFinished
from grpo_engine.models.fast import native
from grpo_engine.rollout.sampler.rows import Rows
from grpo_engine.run.build import build_loop
from tests.engine.conftest import DIGITS, sum_rows, write_rows
from tests.engine.device.pretended import pretended_cuda
from tests.engine.device.seen import Seen

TOOL = {"type": "http", "name": "add", "url": "https://add.example"}
STEPS = {"type": "process", "splitter": "newline", "grader": DIGITS}
KINDS: dict[str, dict[str, Any]] = {
    "lora": {},
    "full": {"lora": "full", "beta": 0.1},
    "supervised": {},
    "two iterations": {"num_iterations": 2, "beta": 0.1},
    "self-distillation": {"self_distillation": {}},
    "tools": {"tools": [TOOL]},
    "process": {"grader": STEPS, "advantage": "process"},
    "dynamic sampling": {"dynamic_sampling": 1},
    "one step ahead": {"max_staleness": 1},
    "stop strings": {"stop": ["a", "7"]},
    "probe": {"probe": {"prompts": 4}},
}


def job(
    folder: Path, model: Path, kind: str, *, device: str, dtype: str = "float32", **more: Any
) -> RunConfig:
    """`more`: hyperparameters."""
    options = dict(KINDS[kind])
    tools, grader, probe = options.pop("tools", []), options.pop("grader", DIGITS), options.pop("probe", None)
    rows = sum_rows(12)
    settings = {"n_steps": 2, "learning_rate": 1e-3, "lora": {"rank": 4, "alpha": 8}, **options, **more}
    if kind == "supervised":
        for row in rows:
            row["messages"].append({"role": "assistant", "content": row["answer"]})
        method = {"type": "supervised", "supervised": {"hyperparameters": settings | {"batch_size": 4}}}
    else:
        shape = {"prompts_per_step": 3, "group_size": 4, "max_completion_tokens": 16, "beta": 0.0}
        inner = {"grader": grader, "tools": tools, "hyperparameters": shape | settings}
        method = {"type": "reinforcement", "reinforcement": inner}
    return RunConfig.model_validate(
        {
            "job_id": "ftjob-test",
            "seed": 7,
            "model": {"name": "tiny", "path": str(model)},
            "training_file": str(write_rows(folder / "train.jsonl", rows)),
            "method": method,
            "probe": probe,
            "runtime": {
                "grader_processes": 1,
                "sample_budget": 8,
                "token_budget": 60,  # several micro-batches in a step
                "device": device,
                "dtype": dtype,
            },
        }
    )


@dataclass
class Run:
    """What a job left behind."""

    events: list[BaseEvent]
    weights: dict[str, Tensor]
    turns: int
    """Tokens that were decoded together, all rows counting as one."""
    seen: Seen = field(default_factory=Seen)

    @property
    def tokens(self) -> list[tuple[int, ...]]:
        recorded = [event for event in self.events if isinstance(event, RolloutsRecorded)]
        return [each.token_ids for event in recorded for group in event.groups for each in group.completions]

    def worst(self, metric: str) -> float:
        """The largest value of a metric in any step."""
        found = [each.metrics.get(metric, 0.0) for each in self.events if isinstance(each, StepFinished)]
        return max(found, default=0.0)

    @property
    def steps(self) -> int:
        return sum(isinstance(event, StepFinished) for event in self.events)

    @property
    def waits_while_training(self) -> int:
        return sum(n for place, n in self.seen.waits.items() if place.startswith(("training/", "objective/")))

    @property
    def waits_while_sampling(self) -> int:
        places = ("rollout/sampler/", "models/fast/", "models/shared_prompt_attention")
        return sum(count for place, count in self.seen.waits.items() if place.startswith(places))


@contextmanager
def counted_turns() -> Iterator[list[int]]:
    turns: list[int] = []
    draw = Rows.draw

    def drawing(self: Rows, logits_B: Tensor) -> Tensor:
        turns.append(len(logits_B))
        return draw(self, logits_B)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rows, "draw", drawing)
        yield turns


def run(config: RunConfig, run_dir: Path, *, is_real: bool = False) -> Run:
    """The job on the device of its configuration; only what happens after loading is recorded.

    `is_real`: a device of this machine; nothing is recorded then.
    """
    is_pretended = config.runtime.device == "cuda" and not is_real
    with pretended_cuda() if is_pretended else by_torch() as seen, counted_turns() as turns:
        loop = build_loop(config, run_dir)
        if seen is not None:
            for counter in (seen.waits, seen.uploads):
                counter.clear()
        turns.clear()
        events = list(loop.run(lambda: False))
        policy = loop.method.policy
    weights = {name: each.detach().cpu().clone() for name, each in policy.trainable.items()}
    return Run(events, weights, len(turns), seen or Seen())


@contextmanager
def by_torch() -> Iterator[None]:
    """A CPU without the compiled operations, which a GPU does not use either."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", lambda: None)
        yield


def largest_difference(left: Run, right: Run) -> float:
    return max(float((left.weights[name] - right.weights[name]).abs().max()) for name in left.weights)
