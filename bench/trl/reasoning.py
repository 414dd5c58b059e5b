"""A model of 10 M parameters that adds numbers step by step; a supervised job trains it here.

Depending on the sum, its answers have 10 to 200 tokens, so that a benchmark has natural lengths. It is
trained once and kept under `build/`.
"""

import json
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.trl.models import PROMPTS_FILE
from examples.tiny_model import make_model
from grpo_engine.config.job import RunConfig
from grpo_engine.contract.events import StepFinished
from grpo_engine.run.build import build_loop

KEPT = Path(__file__).parents[2] / "build" / "bench" / "reasoning"
LAYERS, HIDDEN = 8, 320
ROWS, PROMPTS = 4000, 400
STEPS, BATCH = 110, 32
FEWEST, MOST = 2, 20
"""How many numbers a sum has."""


def reasoning_model(folder: Path) -> Path:
    """The model's folder with its prompts; trained if it does not exist."""
    if not (KEPT / PROMPTS_FILE).exists():
        _train(folder)
    return KEPT


def worked_sum(drawn: random.Random) -> tuple[str, str]:
    """A random sum and its solution, such as `3+5+9=` and `3+5=8;8+9=17;A17`."""
    # short sums are more frequent
    count = min(drawn.randint(FEWEST, MOST), drawn.randint(FEWEST, MOST))
    numbers = [drawn.randint(1, 9) for _ in range(count)]
    total, steps = numbers[0], []
    for number in numbers[1:]:
        steps.append(f"{total}+{number}={total + number};")
        total += number
    return "+".join(map(str, numbers)) + "=", "".join(steps) + f"A{total}"


def _train(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    drawn = random.Random(0)
    sums = [worked_sum(drawn) for _ in range(ROWS + PROMPTS)]
    base = make_model(folder / "base", hidden=HIDDEN, layers=LAYERS)
    with tempfile.TemporaryDirectory() as run:
        model = imitated(base, sums[:ROWS], Path(run), batch_size=BATCH, n_steps=STEPS, learning_rate=1.5e-3)
        held_out = [
            {"prompt": f"<|user|>{sum_}<|assistant|>", "target": solution} for sum_, solution in sums[ROWS:]
        ]
        (model / PROMPTS_FILE).write_text("".join(json.dumps(row) + "\n" for row in held_out))
        shutil.rmtree(KEPT, ignore_errors=True)
        shutil.copytree(model, KEPT)


def imitated(base: Path, sums: Sequence[tuple[str, str]], run: Path, **hyperparameters: Any) -> Path:
    """The folder of `base` after a supervised job on questions and solutions, which runs in the folder
    `run`."""
    rows = [
        {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": solution}]}
        for question, solution in sums
    ]
    (run / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for event in build_loop(_config(base, run / "rows.jsonl", hyperparameters), run).run(lambda: False):
        if isinstance(event, StepFinished) and event.step % 25 == 0:
            print(f"supervised step {event.step}: loss {event.metrics['loss']:.3f}", file=sys.stderr)
    return sorted((run / "checkpoints").glob("step-*"))[-1] / "model"


def _config(base: Path, rows: Path, hyperparameters: dict[str, Any]) -> RunConfig:
    hyperparameters = {
        "warmup_steps": 10,
        "lr_schedule": "linear",
        "lora": "full",
        "max_tokens": 400,
        "checkpoint_interval": 1_000_000,
        **hyperparameters,
    }
    return RunConfig.model_validate(
        {
            "job_id": "reasoning",
            "model": {"name": "reasoning", "path": str(base)},
            "training_file": str(rows),
            "method": {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}},
        }
    )
