"""Compares this engine with TRL 1.16: same model, seeds, number of tokens, hyperparameters and, in each step,
prompts.

    python -m bench.trl.compare --model shape:hidden=512,layers=8,heads=8,kv=4,vocab=8192 --lengths fixed
    python -m bench.trl.compare --workload c --rounds 3
    python -m bench.trl.compare --standard --out bench/results

Both run alternately in child processes, `--rounds` times; the last line on standard output is JSON with the
medians of all rounds and the ratios ours ÷ TRL. Exit status 1: the engines did different amounts of work, or
one did not change its weights. On a shared machine only ratios of one run are meaningful.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer

from bench import machine
from bench.trl import flops
from bench.trl.models import Shape, prompts_of, random_prompts, shape_model
from bench.trl.reasoning import reasoning_model
from bench.trl.side import Answer, Spec, read_answer, read_rows
from examples.tiny_model import make_model
from grpo_engine.process.setup import DEFAULTS
from grpo_engine.rollout.prompt_source import PromptSource

RATIOS = {
    "completions_per_second": "completions_per_second",
    "sampled_tokens_per_second": "sampled_tokens_per_second",
    "trained_tokens_per_second": "trained_tokens_per_second",
    "peak_memory": "peak_memory_bytes",
    "peak_gpu_memory": "peak_gpu_memory_bytes",
    "seconds_per_step": "seconds_per_step",
}
SAME_WORK = 0.15
"""Largest allowed difference in tokens per completion, because natural lengths are sampled."""


@dataclass(frozen=True, slots=True)
class Workload:
    model: str = "shape:hidden=512,layers=8,heads=8,kv=4,vocab=8192"
    prompts: int = 8
    group_size: int = 8
    prompt_tokens: int = 64
    max_completion_tokens: int = 128
    lengths: str = "fixed"
    beta: float = 0.0
    lora_rank: int = 16
    learning_rate: float = 1e-3
    dtype: str = "bfloat16"
    sampler: str = "torch"
    device: str = "cpu"
    steps: int = 4


STANDARD = {
    "a": Workload("tiny", 8, 8, 16, 256, "natural", dtype="float32", steps=8),
    "b": Workload(),
    "c": Workload("reasoning", 8, 8, 32, 200, "natural", beta=0.04, learning_rate=1e-4, steps=6),
    "d": Workload(prompts=4, group_size=16, prompt_tokens=512, max_completion_tokens=64, steps=3),
}
"""a: tiny; b: 29 M parameters; c: a chain of thought; d: long prompts."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    names = list(STANDARD) if options.standard else [options.workload or "custom"]
    found, complaints = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            workload = _workload(name, options)
            rounds = options.rounds
            result = compare(workload, Path(folder) / name, rounds, options.threads, options.seed)
            complaints += [f"{name}: {text}" for text in unfairness_of(result)]
            found[name] = {"workload": {"name": name, "rounds": rounds, **asdict(workload)}, **result}
            print(json.dumps(found[name]), flush=True)
    if options.out is not None:
        write(options.out, found, names)
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0


def compare(workload: Workload, folder: Path, rounds: int, threads: int, seed: int) -> dict[str, Any]:
    """Figures of both engines, measured alternately, and their ratios."""
    spec = prepare(workload, folder, threads, seed)
    answers: dict[str, list[Answer]] = {"ours": [], "theirs": []}
    fractions = []
    for number in range(rounds):
        for side in ("ours", "theirs") if number % 2 == 0 else ("theirs", "ours"):
            before = _matrix_rate(spec)
            answers[side].append(run_side(side, replace(spec, seed=seed + number), folder))
            if side == "ours":
                rate = statistics.mean((before, _matrix_rate(spec)))
                fractions.append(_fractions(spec, answers[side][-1].figures(), rate))
    figures = {side: _medians([answer.figures() for answer in each]) for side, each in answers.items()}
    ours, trl = figures["ours"], figures["theirs"]
    ratios = {name: ours[key] / trl[key] for name, key in RATIOS.items() if trl[key]}
    return {"ours": ours, "trl": trl, "ratios": ratios, "fraction_of_peak": _medians(fractions)}


def _matrix_rate(spec: Spec) -> float:
    """The machine's current rate, which is measured before and after each run of this engine."""
    return machine.matrix_rate(spec.device, getattr(torch, spec.dtype), spec.threads)


def prepare(workload: Workload, folder: Path, threads: int, seed: int) -> Spec:
    """Prepare the model and the rows that both engines read."""
    folder.mkdir(parents=True)
    torch.set_num_threads(threads)
    model = _model(workload, folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = prompts_of(model)
    count = workload.prompts * workload.steps
    if rows is None:
        texts = random_prompts(tokenizer, count, workload.prompt_tokens, seed)
        words = tokenizer(texts[0]).input_ids[:1] * (workload.max_completion_tokens // 2)
        rows = [{"prompt": text, "target": str(tokenizer.decode(words))} for text in texts]
    rows = rows[:count]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lengths = [len(tokenizer(row["prompt"]).input_ids) for row in rows]
    values = {**asdict(workload), "model": str(model), "prompt_tokens": statistics.mean(lengths)}
    return Spec(rows=str(folder / "rows.jsonl"), seed=seed, threads=threads, **values)


def _model(workload: Workload, folder: Path) -> Path:
    if workload.model == "tiny":
        return make_model(folder)
    if workload.model == "reasoning":
        return reasoning_model(folder)
    if workload.model.startswith("shape:"):
        mean_tokens = workload.max_completion_tokens / 2 if workload.lengths == "natural" else None
        dtype = getattr(torch, workload.dtype)
        return shape_model(folder, Shape.parse(workload.model), dtype=dtype, mean_tokens=mean_tokens)
    return Path(workload.model)


def run_side(side: str, spec: Spec, folder: Path) -> Answer:
    """Run once in a child process, so that the peak memory is that of this run."""
    spec = in_our_order(spec, folder) if side == "theirs" else spec
    spec_file, answer_file = folder / "spec.json", folder / "answer.json"
    spec_file.write_text(json.dumps(asdict(spec)))
    # this engine gets its own defaults; TRL gets those that speed up any program
    own = DEFAULTS if side == "ours" else {"GOMP_SPINCOUNT": DEFAULTS["GOMP_SPINCOUNT"]}
    environment = {**os.environ, **own, "OMP_NUM_THREADS": str(spec.threads)}
    command = [sys.executable, "-m", f"bench.trl.{side}", str(spec_file), str(answer_file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{side} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return read_answer(answer_file)


def in_our_order(spec: Spec, folder: Path) -> Spec:
    """The input for TRL, with the rows in the order in which this engine draws them, and no shuffling.

    Otherwise a step's prompts, and so the lengths of its completions, would differ between the engines.
    """
    rows: Any = read_rows(spec.rows)
    source, ordered = PromptSource(rows, spec.prompts, spec.seed), folder / "ordered.jsonl"
    drawn: list[Any] = [row for step in range(1, spec.steps + 1) for row in source.batch(step)]
    ordered.write_text("".join(json.dumps(row) + "\n" for row in drawn))
    return replace(spec, rows=str(ordered), theirs={**spec.theirs, "shuffle_dataset": False})


def _medians(figures: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(each[name] for each in figures) for name in figures[0]}


def _fractions(spec: Spec, ours: dict[str, float], rate: float) -> dict[str, float]:
    """Fractions of the machine's matrix-product rate that sampling and training reach."""
    config = AutoConfig.from_pretrained(spec.model)
    length = ours["tokens_per_completion"]
    tokens = spec.prompts * spec.group_size * length
    return {
        "train": flops.train_flops(config, spec, tokens, length) / ours["train_seconds"] / rate,
        "decode": flops.decode_flops(config, spec, tokens, length) / ours["sample_seconds"] / rate,
        "matrix_gflops_per_second": rate / 1e9,
    }


def unfairness_of(result: dict[str, Any]) -> list[str]:
    """Why the comparison is unfair; empty if it is fair."""
    ours, trl = result["ours"], result["trl"]
    problems = []
    apart = ours["tokens_per_completion"] / trl["tokens_per_completion"] - 1
    if abs(apart) > SAME_WORK:
        problems.append(f"ours sampled {apart:+.0%} tokens per completion")
    for name, side in (("ours", ours), ("TRL", trl)):
        if side["moved"] == 0:
            problems.append(f"{name} changed no weight")
    return problems


def write(folder: Path, found: dict[str, Any], names: Sequence[str]) -> None:
    """Write `<machine>.json` and a table; figures of other workloads are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    name = machine.machine_name(found[names[0]]["workload"]["device"])
    kept = folder / f"{name}.json"
    if kept.exists():
        found = {**json.loads(kept.read_text()), **found}
    kept.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n")
    lines = [
        f"# Against TRL 1.16 on {name}",
        "",
        "Written by `make bench`. Ratios are ours ÷ TRL, medians of alternating runs; a share is of the "
        "machine's measured matrix-product rate.",
        "",
        "| workload | completions/s | sampled tokens/s | trained tokens/s | seconds per step | peak memory "
        "| training's share | decoding's share |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for key in sorted(found):
        ratios, share = found[key]["ratios"], found[key]["fraction_of_peak"]
        lines.append(
            f"| {key} | {ratios['completions_per_second']:.2f} | {ratios['sampled_tokens_per_second']:.2f} "
            f"| {ratios['trained_tokens_per_second']:.2f} | {ratios['seconds_per_step']:.3f} "
            f"| {ratios['peak_memory']:.2f} | {share['train']:.0%} | {share['decode']:.0%} |"
        )
    (folder / f"{name}.md").write_text("\n".join(lines) + "\n")


def _workload(name: str, options: argparse.Namespace) -> Workload:
    """The named or default workload, with the command line's options."""
    given = {
        key: value for key in Workload.__dataclass_fields__ if (value := getattr(options, key)) is not None
    }
    return replace(STANDARD.get(name, Workload()), **given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.trl.compare", description=__doc__.splitlines()[0])
    parser.add_argument("--standard", action="store_true", help="the four standard workloads")
    parser.add_argument("--workload", choices=list(STANDARD), help="one of them")
    parser.add_argument(
        "--model", help="a folder, tiny, reasoning or shape:hidden=…,layers=…,heads=…,kv=…,vocab=…"
    )
    for name in ("prompts", "group-size", "prompt-tokens", "max-completion-tokens", "lora-rank", "steps"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("beta", "learning-rate"):
        parser.add_argument(f"--{name}", type=float)
    parser.add_argument("--lengths", choices=("fixed", "natural"))
    parser.add_argument("--dtype", choices=("float32", "bfloat16"))
    parser.add_argument("--sampler", choices=("torch", "vllm"))
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for the results")
    return parser


if __name__ == "__main__":
    sys.exit(main())
