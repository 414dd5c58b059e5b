"""Measures each recipe's accuracy on held-out sums before and after training, with three seeds.

    python -m bench.recipes [--seeds 0 1 2] [--steps 120] [--recipes grpo dapo …] [--out bench/recipes.md]

The task is that of the demo: a small model first learns sums with forgotten carries, and each recipe starts
from that model. Runs use one thread. Seconds are CPU time, which a busy machine does not change.
"""

import argparse
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from examples.arithmetic import make_rows, supervised_rows, write_jsonl
from examples.tiny_model import make_model
from grpo_engine.config.job import RunConfig
from grpo_engine.config.recipes import RECIPES
from grpo_engine.contract.events import Evaluated
from grpo_engine.run.build import build_loop
from grpo_engine.training.run_description import library_versions

HELD_OUT, TRAIN = 100, 2000
FORGOTTEN_CARRIES = 0.65
SUPERVISED = {
    "batch_size": 64,
    "n_steps": 400,
    "learning_rate": 2e-3,
    "warmup_steps": 10,
    "adam_beta2": 0.98,
    "lora": "full",
    "max_tokens": 64,
}
GRPO = {
    "group_size": 8,
    "prompts_per_step": 32,
    "learning_rate": 1e-3,
    "lr_schedule": "linear",
    "warmup_steps": 5,
    "max_completion_tokens": 6,
    "lora": {"rank": 16, "alpha": 32},
    "eval_interval": 100_000,
    "checkpoint_interval": 100_000,
}


@dataclass(frozen=True)
class Outcome:
    recipe: str
    seed: int
    before: float
    after: float
    seconds: float

    @property
    def points(self) -> float:
        return 100 * (self.after - self.before)


def run(folder: Path, model: Path, files: dict[str, Path], seed: int, method: dict[str, Any]) -> list[float]:
    """Held-out accuracies in the order of measurement."""
    config = RunConfig.model_validate(
        {
            "job_id": folder.name,
            "seed": seed,
            "model": {"name": "tiny", "path": str(model)},
            "training_file": str(files[method["type"]]),
            "validation_file": str(files["held_out"]) if method["type"] == "reinforcement" else None,
            "method": method,
            "runtime": {"dtype": "float32", "num_threads": 1},
        }
    )
    folder.mkdir()
    events = build_loop(config, folder).run(lambda: False)
    return [event.metrics["reward"] for event in events if isinstance(event, Evaluated)]


def seeded_model(folder: Path, seed: int) -> tuple[Path, dict[str, Path]]:
    """The demo's model after its supervised job, and the files with the rows."""
    base = make_model(folder / "base", seed=seed)
    train, held_out = make_rows(TRAIN, HELD_OUT, seed=seed)
    files = {
        "reinforcement": write_jsonl(folder / "train.jsonl", train),
        "held_out": write_jsonl(folder / "held_out.jsonl", held_out),
        "supervised": write_jsonl(
            folder / "supervised.jsonl",
            supervised_rows(train, forgotten_carries=FORGOTTEN_CARRIES, seed=seed),
        ),
    }
    method = {"type": "supervised", "supervised": {"hyperparameters": SUPERVISED}}
    run(folder / "sft", base, files, seed, method)
    newest = sorted((folder / "sft" / "checkpoints").glob("step-*"))[-1]
    return newest / "model", files


def measure(recipes: Sequence[str], seeds: Sequence[int], steps: int) -> list[Outcome]:
    found = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            model, files = seeded_model(folder, seed)
            for recipe in recipes:
                grader = {"type": "numeric", "reference": "{{item.answer}}"}
                method = {
                    "type": "reinforcement",
                    "reinforcement": {
                        "grader": grader,
                        "hyperparameters": {**GRPO, "recipe": recipe, "n_steps": steps},
                    },
                }
                started = time.process_time()
                accuracies = run(folder / recipe, model, files, seed, method)
                seconds = time.process_time() - started
                outcome = Outcome(recipe, seed, accuracies[0], accuracies[-1], seconds)
                print(f"{recipe:>20} seed {seed}: {outcome.points:+.1f} points, {seconds:.0f} s", flush=True)
                found.append(outcome)
    return found


def table(outcomes: Sequence[Outcome], steps: int) -> str:
    """The page as Markdown."""
    rows = []
    for recipe in dict.fromkeys(outcome.recipe for outcome in outcomes):
        own = [outcome for outcome in outcomes if outcome.recipe == recipe]
        before = ", ".join(f"{100 * each.before:.0f}" for each in own)
        after = ", ".join(f"{100 * each.after:.0f}" for each in own)
        lifted = statistics.median(each.points for each in own)
        seconds = statistics.median(each.seconds for each in own)
        rows.append(f"| `{recipe}` | {before} | {after} | {lifted:+.0f} | {steps} | {seconds:.0f} |")
    versions = ", ".join(f"{name} {version}" for name, version in library_versions().items())
    seeds = ", ".join(str(seed) for seed in dict.fromkeys(outcome.seed for outcome in outcomes))
    return "\n".join(
        [
            "# Every recipe on the demo task",
            "",
            "Right answers in percent on 100 held-out sums, greedy, before and after GRPO from the same",
            f"supervised model; seeds {seeds}. Repeat with `make recipes`.",
            "",
            "| recipe | before | after | median lift, points | steps | median CPU seconds, one thread |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
            f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {versions}.",
            "",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.recipes", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("recipes.md"))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    outcomes = measure(options.recipes, options.seeds, options.steps)
    options.out.write_text(table(outcomes, options.steps))
    print(options.out.read_text())
    return 0 if all(outcome.points > 0 for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
