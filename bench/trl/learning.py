"""Compares learning curves of this engine and of TRL 1.16 on sums with carries, from the same model.

    python -m bench.trl.learning [--seeds 0 1 2] [--steps 60] [--device cuda] [--out bench/learning.md]

Prompts, their order, rewards and hyperparameters are equal; each run draws its own samples and adapter. A run
has one CPU thread, and as many run at once as there are cores.
Writes the page, and a JSON file of the same name in `results` beside it. Exit status 1: a difference is not
within noise.
"""

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.trl.compare import run_side
from bench.trl.learning_task import GRADER, MAX_TOKENS, MODEL, NUM_HELD_OUT, TRAIN, accuracy, make_task
from bench.trl.side import Spec
from grpo_engine.training.run_description import library_versions

SIDES = {"ours": "ours", "TRL": "theirs"}
CASES: dict[str, dict[str, Any]] = {
    "LoRA, bfloat16": {"dtype": "bfloat16", "lora_rank": 16, "learning_rate": 5e-4},
    "LoRA, float32": {"dtype": "float32", "lora_rank": 16, "learning_rate": 5e-4},
    "all weights, bfloat16": {"dtype": "bfloat16", "lora_rank": 0, "learning_rate": 1e-4},
}
PROMPTS = 8
LIKE_TRL = {"kl_ratio_weight": True, "train_groups_without_signal": True}
T_99 = {2: 9.925, 3: 4.604, 4: 3.707, 5: 3.355, 6: 3.169}
"""Student's t for 99%, two-sided, by the number of seeds per engine."""
WINDOW = 8
"""Number of steps over which a smoothed reward is averaged."""
PAGE = """# Learning curves of this engine and of TRL 1.16

Written by `python -m bench.trl.learning{option}`, with the curves in `bench/results/{stem}.json`.

A small model works out sums of three numbers and forgets half of the carries. Its largest logit is
{logit:.0f}. GRPO rewards the right sum: {steps} steps of 8 prompts × 8 completions, temperature 1, β 0.02,
clip 0.2, loss `dapo`, AdamW with a constant learning rate, in both engines. A seed draws the samples, the
adapter and the order of the prompts, which is the same for both engines. This engine uses its default sampler
correction: per token in bfloat16. transformers and PEFT measure accuracy with the saved weights, greedily, on
200 sums that were not trained on. The area under the curve is the mean reward of all steps.

Within noise: by Student's t-test at 99 %, the means over the seeds do not differ: |difference| ≤ noise =
t · s · √(2/n), where s is the pooled standard deviation between seeds, but at least one held-out sum. If
noise is not below half of the gain from training, the comparison is inconclusive.

| case | measure | before | ours, by seed | TRL, by seed | difference | noise | verdict |
|---|---|---|---|---|---|---|---|
{verdicts}

Mean reward over the seeds in each fifth of the steps:

| case | engine | first | second | third | fourth | last |
|---|---|---|---|---|---|---|
{curves}

{versions}, trl {trl}.
"""


def spec_of(case: dict[str, Any], task: Path, *, device: str = "cpu", **more: Any) -> Spec:
    return Spec(
        model=str(task / MODEL),
        prompts=PROMPTS,
        group_size=8,
        prompt_tokens=8,
        max_completion_tokens=MAX_TOKENS,
        lengths="natural",
        beta=0.02,
        sampler="torch",
        device=device,
        threads=1,
        grader=GRADER,
        ours=LIKE_TRL,
        **case,
        **more,
    )


def judge(ours: Sequence[float], trl: Sequence[float], before: float) -> dict[str, Any]:
    """The difference of the means, its noise and a verdict, as the page says."""
    difference = statistics.mean(ours) - statistics.mean(trl)
    spread = ((statistics.variance(ours) + statistics.variance(trl)) / 2) ** 0.5
    noise = T_99[len(ours)] * max(spread, 1 / NUM_HELD_OUT) * (2 / len(ours)) ** 0.5
    gain = statistics.mean([*ours, *trl]) - before
    verdict = "outside noise" if abs(difference) > noise else "within noise"
    if verdict == "within noise" and noise >= gain / 2:
        verdict = "inconclusive"
    return {"before": before, "difference": difference, "noise": noise, "verdict": verdict}


def run_once(side: str, spec: Spec, task: Path) -> dict[str, Any]:
    """Run once in a child process; returns rewards by step, their moving average and area, and the held-out
    accuracy."""
    with tempfile.TemporaryDirectory() as name:
        trained = Path(name) / "trained"
        rewards = [
            step.reward for step in run_side(side, replace(spec, trained=str(trained)), Path(name)).steps
        ]
        found = accuracy(task, trained, spec.dtype)[0]
    smooth = [statistics.mean(rewards[max(0, end - WINDOW) : end]) for end in range(1, len(rewards) + 1)]
    area = statistics.mean(rewards)
    return {"seed": spec.seed, "accuracy": found, "area": area, "rewards": rewards, "smoothed": smooth}


def measure(name: str, task: Path, seeds: Sequence[int], steps: int, device: str) -> dict[str, Any]:
    """Runs and verdicts of one case."""
    before, logit = accuracy(task, task, CASES[name]["dtype"])

    def one(seed: int, engine: str) -> dict[str, Any]:
        side = SIDES[engine]
        spec = spec_of(CASES[name], task, device=device, seed=seed, steps=steps, rows=str(task / TRAIN))
        run = run_once(side, spec, task)
        print(f"{name}, seed {seed}, {engine}: {run['area']:.3f}, {run['accuracy']:.3f}", flush=True)
        return run

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        found = list(pool.map(one, *zip(*itertools.product(seeds, SIDES), strict=True)))
    runs = {engine: found[place :: len(SIDES)] for place, engine in enumerate(SIDES)}
    first = statistics.mean(run["rewards"][0] for each in runs.values() for run in each)
    verdicts = {}
    for kind, start in (("accuracy", before), ("area", first)):
        ours, trl = ([run[kind] for run in each] for each in runs.values())
        verdicts[kind] = judge(ours, trl, start)
    return {**CASES[name], "device": device, "largest_logit": logit, "runs": runs, "verdicts": verdicts}


def page(found: dict[str, Any], stem: str = "learning") -> str:
    """The results as Markdown. `stem`: name of the page's file and of its curves' file."""
    verdicts, curves = [], []
    for name, case in found.items():
        for kind, verdict in case["verdicts"].items():
            seeds = [", ".join(f"{run[kind]:.3f}" for run in runs) for runs in case["runs"].values()]
            figures = [
                f"{verdict['before']:.3f}",
                *seeds,
                f"{verdict['difference']:+.3f}",
                f"{verdict['noise']:.3f}",
            ]
            verdicts.append(f"| {name} | {kind} | {' | '.join(figures)} | {verdict['verdict']} |")
        for engine, runs in case["runs"].items():
            mean = [statistics.mean(step) for step in zip(*(run["rewards"] for run in runs), strict=True)]
            steps = len(mean)
            fifths = [statistics.mean(mean[steps * i // 5 : steps * (i + 1) // 5]) for i in range(5)]
            curves.append(f"| {name} | {engine} | {' | '.join(f'{value:.3f}' for value in fifths)} |")
    versions = ", ".join(f"{name} {number}" for name, number in library_versions().items())
    logit = min(case["largest_logit"] for case in found.values())
    tables = {"verdicts": "\n".join(verdicts), "curves": "\n".join(curves)}
    (device,) = {case["device"] for case in found.values()}
    option = "" if device == "cpu" else f" --device {device} --out bench/{stem}.md"
    names = {"option": option, "stem": stem, "versions": versions, "trl": version("trl")}
    return PAGE.format(logit=logit, steps=steps, **names, **tables)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.trl.learning", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="2 to 6 of them")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "learning.md")
    options = parser.parse_args(arguments)
    if len(options.seeds) not in T_99:
        parser.error(f"--seeds: {len(options.seeds)} given; give 2 to 6")
    task = make_task()
    found = {
        name: measure(name, task, options.seeds, options.steps, options.device) for name in options.cases
    }
    options.out.write_text(page(found, options.out.stem))
    curves = options.out.parent / "results" / f"{options.out.stem}.json"
    curves.parent.mkdir(exist_ok=True)
    curves.write_text(json.dumps(found, indent=1) + "\n")
    verdicts = [each["verdict"] for case in found.values() for each in case["verdicts"].values()]
    return 0 if set(verdicts) == {"within noise"} else 1


if __name__ == "__main__":
    sys.exit(main())
