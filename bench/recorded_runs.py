"""Records real runs of a tiny model, good and bad ones, for the tests of the diagnosis.

    python -m bench.recorded_runs OUT [--recipes good memorised …] [--seeds 0 1] [--models FOLDER]

Writes one file per run: a line with the request and the expected class, then one line per step with the
metrics that the diagnosis reads, as the service stores them. A run takes 5 to 60 seconds on one core.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bench.recipes import GRPO, SUPERVISED
from bench.recorded_recipes import EXPECTED, RECIPES, Row, demonstrated, rows_of
from examples.arithmetic import write_jsonl
from examples.tiny_model import make_model
from grpo_engine.config.job import RunConfig
from grpo_engine.contract import events as engine
from grpo_engine.contract.errors import EngineError
from grpo_engine.run.build import build_loop
from service.jobs.diagnosis.facts import counted
from service.jobs.progress.evaluations import metrics

KEPT = (
    *("reward", "reward_std", "frac_reward_zero_std", "kl", "entropy", "clip_ratio/region_mean"),
    *("completions/mean_length", "completions/clipped_ratio", "completions/reward_length_correlation"),
)
EVALUATED = (
    *("eval/reward", "eval/reward_std", "eval/num_rows"),
    *("eval/difference", "eval/difference_low", "eval/difference_high", "eval/compared_rows"),
)


def _events(
    folder: Path, model: Path, files: Mapping[str, Path], seed: int, method: Row
) -> Iterator[engine.BaseEvent]:
    config = RunConfig.model_validate(
        {
            "job_id": folder.name,
            "seed": seed,
            "model": {"name": "tiny", "path": str(model)},
            "training_file": str(files["train"]),
            "validation_file": str(files["held_out"]) if "held_out" in files else None,
            "method": method,
            "runtime": {"dtype": "float32", "num_threads": 1},
        }
    )
    folder.mkdir(parents=True)
    yield from build_loop(config, folder).run(lambda: False)


def model_of(models: Path, demonstrations: str, seed: int) -> Path:
    """The tiny model after it has imitated the demonstrations; made once in `models`."""
    folder = models / f"{demonstrations}-{seed}"
    if not folder.exists():
        base = make_model(models / f"base-{seed}", seed=seed)
        rows = write_jsonl(models / f"{demonstrations}-{seed}.jsonl", demonstrated(demonstrations, seed))
        method = {"type": "supervised", "supervised": {"hyperparameters": SUPERVISED}}
        list(_events(folder, base, {"train": rows}, seed, method))
    return sorted((folder / "checkpoints").glob("step-*"))[-1] / "model"


def record(name: str, seed: int, models: Path, out: Path) -> Path:
    """Run the recipe and write its file."""
    recipe = RECIPES[name]
    settings = {**GRPO, "eval_interval": 20, **recipe.settings}
    graders = {"grader": recipe.grader} | ({"eval_grader": recipe.eval_grader} if recipe.eval_grader else {})
    method = {"type": "reinforcement", "reinforcement": {**graders, "hyperparameters": settings}}
    folder = models / "runs" / f"{name}-{seed}"
    folder.parent.mkdir(exist_ok=True)
    train, held_out = rows_of(recipe, seed)
    files = {"train": write_jsonl(models / f"{name}-{seed}-train.jsonl", train)}
    if held_out:
        files["held_out"] = write_jsonl(models / f"{name}-{seed}-held_out.jsonl", held_out)
    recorded = _Recorded()
    try:
        for event in _events(folder, model_of(models, recipe.demonstrations, seed), files, seed, method):
            recorded.add(event)
    except EngineError as error:
        recorded.failure = {"code": error.code, "message": str(error), "hint": error.hint, "evidence": []}
    kind = name.split("-")[0]
    expected, summary = EXPECTED[kind]
    header = {"class": kind, "expected": expected, "summary": summary, "seed": seed, "method": method}
    header["num_rows"] = len(train)
    path = out / f"{name}-{seed}.jsonl"
    path.write_text("".join(f"{line}\n" for line in recorded.lines(header)))
    return path


class _Recorded:
    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.groups: dict[int, list[int]] = {}
        self.warnings: list[list[Any]] = []
        self.baseline: dict[str, float] = {}
        self.total_steps = 0
        self.failure: dict[str, Any] | None = None

    def add(self, event: engine.BaseEvent) -> None:
        match event:
            case engine.Started():
                self.total_steps = event.total_steps
            case engine.StepFinished() | engine.StepSkipped():
                self.rows.setdefault(event.step, {}).update(event.metrics)
            case engine.Evaluated(step=0):
                self.baseline = {name: event.metrics[name] for name in ("reward", "reward_std", "num_rows")}
            case engine.Evaluated():
                self.rows.setdefault(event.step, {}).update(metrics(event))
            case engine.RolloutsRecorded(split="train"):
                found = counted(
                    [(event.step, one.model_dump(mode="json")["completions"]) for one in event.groups]
                )
                self.groups[event.step] = [found.num, found.num_wrong, found.num_right, found.num_between]
            case engine.Warned():
                self.warnings.append([event.step, event.code, event.message])
            case engine.Failed():
                self.failure = {name: getattr(event, name) for name in ("code", "message", "hint")}
                self.failure["evidence"] = list(event.evidence)
            case _:
                pass

    def lines(self, header: Row) -> Iterator[str]:
        """The header, then `[step, groups, value, …]` with the values in the header's order of names.

        Values that are missing at the end of a line are left out.
        """
        present = {name for row in self.rows.values() for name in row}
        parts = sorted(name for name in present if name.endswith(("/mean", "/std", "/error_rate")))
        names = [name for name in (*KEPT, *parts, *EVALUATED) if name in present]
        own = {"total_steps": self.total_steps, "baseline": self.baseline, "failure": self.failure}
        yield _line({**header, **own, "warnings": self.warnings, "names": names})
        for step, row in sorted(self.rows.items()):
            values = [_short(row.get(name)) for name in names]
            while values[-1] is None:
                values.pop()
            yield _line([step, self.groups.get(step), *values])


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _short(value: float | None) -> float | None:
    """Four significant digits."""
    return None if value is None else float(f"{value:.4g}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.recorded_runs", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--models", type=Path, default=Path("recorded_models"), help="folder for models and runs"
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    options.models.mkdir(parents=True, exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:
        for name in options.recipes:
            print(record(name, seed, options.models, options.out), flush=True)


if __name__ == "__main__":
    main()
