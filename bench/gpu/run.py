"""The GPU set: trainer alone, sampler alone and whole steps against TRL 1.16, on one H200-class card.

    python -m bench.gpu.run                                   # under 9 minutes, unattended
    python -m bench.gpu.run --vllm-python .venv-vllm/bin/python
    python -m bench.gpu.run --parts train-4b sample-4b-torch  # only these and the parts that they need
    python -m bench.gpu.run --quick --device cpu --out page.json

The models have the shapes of Qwen3-0.6B and Qwen3-4B and random weights, so nothing is downloaded; no figure
depends on the weights' values. Parts run in order of importance, each in a child process (`measure.py`) with
its own process group and a share of the deadline. The page is written after each part. A part that fails is
recorded with its error, and the others continue; one that no longer fits is recorded as not run. Exit status
1: a part failed. Weights go to a temporary folder (9 GB): TMPDIR=/dev/shm keeps them off the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.gpu.measure import save
from bench.gpu.page import Ended, page_of, result_of
from bench.gpu.plan import FULL, QUICK, SERVICE_TESTS, Part, Sampler, Sizes, parts_of
from bench.packages import has_modules, required, version_in
from bench.trl.compare import Workload, prepare
from bench.trl.side import Spec
from grpo_engine.process.setup import DEFAULTS

RESULTS = Path(__file__).parents[1] / "results"
DEADLINE_SECONDS = 520.0
LEAST_SHARE = 0.5
"""A part is not started if less than this fraction of its time limit is left."""
LORA_RANK, LEARNING_RATE, DTYPE, SEED = 16, 1e-4, "bfloat16", 0
MAX_LOG_CHARACTERS = 4000
"""Lines of a failed child's log to print; the last line is the reason on the page."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    began = time.monotonic()
    sizes = QUICK if options.quick else FULL
    vllm = has_modules(options.vllm_python, "vllm")
    together: Sampler = "vllm" if vllm and has_modules(options.vllm_python, "vllm", "trl") else "torch"
    parts = chosen(list(parts_of(sizes, together)), options.parts)
    settings = {
        "set": "quick" if options.quick else "full",
        "device": options.device,
        "deadline_seconds": options.deadline_seconds,
        "vllm": {"found": version_in(options.vllm_python, "vllm"), "needed": required("vllm")},
        "steps_sampler": STEPS_SAMPLER[together],
    }
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="grpo-gpu-", ignore_cleanup_errors=True) as folder:
        runner = Runner(Path(folder), sizes, options.device, options.vllm_python if vllm else None)
        for part, result in measured(parts, runner, began + options.deadline_seconds):
            found[part.name] = result
            _print_result(part, result)
            save(_out(options.out, found), page_of(settings, parts, found))
    return int(any(result["status"] == "failed" for result in found.values()))


STEPS_SAMPLER: dict[Sampler, str] = {
    "vllm": "both engines sample with vLLM in their own process",
    "torch": "ours samples with torch, TRL with transformers' generate, fewer tokens: vLLM and TRL cannot be "
    "imported together here",
}


def chosen(parts: Sequence[Part], names: Iterable[str]) -> list[Part]:
    """The named parts and those that they need; no names: all. Raises SystemExit for an unknown name."""
    by_name = {part.name: part for part in parts}
    wanted = {"machine"}
    for name in names:
        if name not in by_name:
            raise SystemExit(f"unknown part {name}; the parts are {', '.join(by_name)}")
        wanted |= {name, by_name[name].needs}
    return [part for part in parts if len(wanted) == 1 or part.name in wanted]


def measured(parts: Iterable[Part], runner: Runner, deadline: float) -> Iterator[tuple[Part, dict[str, Any]]]:
    """Each part's result. `deadline` is in seconds of `time.monotonic`."""
    done: set[str] = set()
    for part in parts:
        left = deadline - time.monotonic()
        if part.needs and part.needs not in done:
            result: dict[str, Any] = {"status": "not_run", "reason": f"{part.needs} is missing"}
        elif left < LEAST_SHARE * part.seconds:
            reason = f"{max(0.0, left):.0f} s left, and it may need {part.seconds:.0f} s"
            result = {"status": "not_run", "reason": reason}
        else:
            result = runner.run(part, min(part.seconds, left))
        if result["status"] == "done":
            done.add(part.name)
        yield part, result


def _print_result(part: Part, result: dict[str, Any]) -> None:
    reasons = [result.get("reason"), *(cell.get("error") for cell in result.get("cells", []))]
    reason = next((reason.splitlines()[0] for reason in reasons if reason), "")
    print(f"{part.name:24} {result['status']:8} {result.get('seconds', 0.0):6.1f} s {reason}", flush=True)


def _out(given: Path | None, found: dict[str, Any]) -> Path:
    """The given path, or one named for the machine once its name is known."""
    if given is not None:
        return given
    RESULTS.mkdir(exist_ok=True)
    machine = found["machine"].get("figures", {}).get("file_name", "unknown")
    return RESULTS / f"gpu-{machine}.json"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.gpu.run", description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="one tiny shape, to check the set")
    parser.add_argument("--deadline-seconds", type=float, default=DEADLINE_SECONDS)
    parser.add_argument("--parts", nargs="+", default=[], metavar="NAME", help="only these")
    parser.add_argument("--vllm-python", default=sys.executable, help="interpreter with vLLM installed")
    parser.add_argument("--out", type=Path, help="the page; default bench/results/gpu-<machine>.json")
    return parser


class Runner:
    def __init__(self, folder: Path, sizes: Sizes, device: str, vllm_python: str | None) -> None:
        """`vllm_python`: None if vLLM is not installed."""
        self.folder = folder
        self.sizes = sizes
        self.device = device
        self.vllm_python = vllm_python
        self.threads = len(os.sched_getaffinity(0))

    def run(self, part: Part, seconds: float) -> dict[str, Any]:
        """The part's result: `status`, and its figures or cells, or the reason why there are none."""
        if reason := self._missing(part):
            return {"status": "not_run", "reason": reason}
        began = time.monotonic()
        folder = self.folder / part.name
        task, output, log = folder / "task.json", folder / "output.json", folder / "log"
        spec = replace(self._spec(part), ours=part.ours)
        folder.mkdir(exist_ok=True)
        task.write_text(json.dumps(self._task(part, spec, began + seconds)))
        ended = run_in_group(self._command(part, task, output), log, began + seconds - time.monotonic())
        result = {"seconds": time.monotonic() - began, **result_of(part, output, ended)}
        cut = not ended.in_time and seconds < part.seconds  # cut by the deadline, not by its own limit
        if cut and not any("error" in cell for cell in result.get("cells", ())):
            return result | {"status": "done" if output.exists() else "not_run"}
        return result

    def _command(self, part: Part, task: Path, output: Path) -> list[str]:
        if part.kind == "tests":
            # tests/conftest.py starts servers, which the tests of the device do not need
            options = ["--confcutdir=tests/engine", "-m", "needs_gpu", f"--junitxml={output}"]
            return [sys.executable, "-m", "pytest", *options, *part.tests]
        module = f"bench.trl.{part.kind}" if part.steps is not None else "bench.gpu.measure"
        python = self.vllm_python if part.sampler == "vllm" else None
        return [python or sys.executable, "-m", module, str(task), str(output)]

    def _missing(self, part: Part) -> str:
        """Why the part cannot run on this machine; empty if it can."""
        if part.sampler == "vllm" and self.vllm_python is None:
            return f"{required('vllm')} is not installed here (--vllm-python)"
        if part.kind == "theirs" and not has_modules(sys.executable, "trl"):
            return "TRL is not installed here"
        if part.name == SERVICE_TESTS and not has_modules(sys.executable, "sqlalchemy", "celery"):
            return "the service is not installed here"
        return ""

    def _task(self, part: Part, spec: Spec, until: float) -> dict[str, Any]:
        if part.steps is not None:
            return asdict(spec)
        return {
            "kind": part.kind,
            "spec": asdict(spec),
            "cells": [asdict(cell) for cell in part.cells],
            "shape": asdict(self.sizes.shapes[part.shape]) if part.shape else None,
            "passes": self.sizes.passes,
            "matrix_size": self.sizes.matrix_size,
            "until": until,
        }

    def _spec(self, part: Part) -> Spec:
        """The input of both engines; an end-to-end run includes its rows."""
        cell = part.steps
        work = Workload(
            model=str(self.folder / f"weights-{part.shape}"),
            prompts=cell.prompts if cell else 1,
            group_size=cell.group_size if cell else 2,
            prompt_tokens=cell.prompt_tokens if cell else 1,
            max_completion_tokens=cell.length if cell else 1,
            lora_rank=LORA_RANK,
            learning_rate=LEARNING_RATE,
            dtype=DTYPE,
            sampler=part.sampler,
            device=self.device,
            steps=part.num_steps or self.sizes.num_steps,
        )
        if cell is None:
            return Spec(rows="", seed=SEED, threads=self.threads, **asdict(work))
        return prepare(work, self.folder / part.name, self.threads, SEED)


def run_in_group(command: list[str], log: Path, seconds: float) -> Ended:
    """Run it for at most `seconds`, then kill its whole process group."""
    own = {**DEFAULTS, "HF_HUB_OFFLINE": "1"}
    # If several GPUs were visible, TRL would split its batch over all of them.
    environment = {"CUDA_VISIBLE_DEVICES": "0", **os.environ, **own}
    with log.open("wb") as out:
        # delay SIGTERM until there is a child that it can end
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        child = subprocess.Popen(
            command,
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_unblock_sigterm,
        )
        try:
            _unblock_sigterm()
            status = child.wait(seconds)
        except subprocess.TimeoutExpired:
            return Ended(False, f"stopped after {seconds:.0f} s")
        finally:
            with suppress(ProcessLookupError):  # the group has ended
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    if status == 0:
        return Ended(True)
    printed = log.read_text(errors="replace").strip()[-MAX_LOG_CHARACTERS:]
    print(printed, file=sys.stderr, flush=True)
    return Ended(True, f"its process ended with {status}: {(printed.splitlines() or ['no output'])[-1]}")


def _unblock_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the current child too
    sys.exit(main())
