"""The GPU set: trainer alone, sampler alone and whole steps against TRL 1.16, on one H200-class card.

    python -m bench.gpu.run                                   # under 9 minutes, unattended
    python -m bench.gpu.run --vllm-python .venv-vllm/bin/python
    python -m bench.gpu.run --parts train-4b sample-4b-torch  # only these, and what they need
    python -m bench.gpu.run --quick --device cpu --out page.json

Shapes of Qwen3-0.6B and Qwen3-4B with random weights: nothing is downloaded, and nothing depends on what the
weights say. Each part runs in a child of its own, in the order of importance, each with a share of the
deadline; the page is written after each. A part that fails is recorded with its error and the others go on;
one that no longer fits is recorded as not run. Exit status 1: a part failed.
Weights go to a temporary folder (9 GB): TMPDIR=/dev/shm keeps them off the disk.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.gpu.child import save
from bench.gpu.page import page_of
from bench.gpu.parts import FULL, QUICK, Part, Sampler, parts_of
from bench.gpu.runner import Runner

RESULTS = Path(__file__).parents[1] / "results"
DEADLINE_SECONDS = 520.0
LEAST_SHARE = 0.5
"""A part that has less than this of its share left would most likely be cut: it is not begun."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    began = time.monotonic()
    sizes = QUICK if options.quick else FULL
    vllm = _has(options.vllm_python, "vllm")
    together: Sampler = "vllm" if vllm and _has(options.vllm_python, "vllm", "trl") else "torch"
    parts = chosen(list(parts_of(sizes, together)), options.parts)
    settings = {
        "set": "quick" if options.quick else "full",
        "device": options.device,
        "deadline_seconds": options.deadline_seconds,
        "vllm": vllm,
        "steps_sampler": STEPS_SAMPLER[together],
    }
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="grpo-gpu-", ignore_cleanup_errors=True) as folder:
        runner = Runner(Path(folder), sizes, options.device, options.vllm_python if vllm else None)
        for part, result in measured(parts, runner, began + options.deadline_seconds):
            found[part.name] = result
            _tell(part, result)
            save(_out(options.out, found), page_of(settings, parts, found))
    return int(any(result["status"] == "failed" for result in found.values()))


STEPS_SAMPLER: dict[Sampler, str] = {
    "vllm": "both engines sample with vLLM in their own process",
    "torch": "ours samples with torch, TRL with transformers' generate, fewer tokens: vLLM and TRL cannot be "
    "imported together here",
}


def chosen(parts: Sequence[Part], names: Iterable[str]) -> list[Part]:
    """Those of these names with all that they need; no names: all. Raises SystemExit for an unknown one."""
    by_name = {part.name: part for part in parts}
    wanted = {"machine"}
    for name in names:
        if name not in by_name:
            raise SystemExit(f"no part is named {name}: {', '.join(by_name)}")
        wanted |= {name, by_name[name].needs}
    return [part for part in parts if len(wanted) == 1 or part.name in wanted]


def measured(parts: Iterable[Part], runner: Runner, deadline: float) -> Iterator[tuple[Part, dict[str, Any]]]:
    """Each part's result. `deadline`: a moment of `time.monotonic`."""
    done: set[str] = set()
    for part in parts:
        left = deadline - time.monotonic()
        if part.needs and part.needs not in done:
            result: dict[str, Any] = {"status": "not_run", "reason": f"{part.needs} is not there"}
        elif left < LEAST_SHARE * part.seconds:
            reason = f"{max(0.0, left):.0f} s are left, and it may need {part.seconds:.0f} s"
            result = {"status": "not_run", "reason": reason}
        else:
            result = runner.run(part, min(part.seconds, left))
        if result["status"] == "done":
            done.add(part.name)
        yield part, result


def _tell(part: Part, result: dict[str, Any]) -> None:
    reasons = [result.get("reason"), *(cell.get("error") for cell in result.get("cells", []))]
    said = next((reason.splitlines()[0] for reason in reasons if reason), "")
    print(f"{part.name:24} {result['status']:8} {result.get('seconds', 0.0):6.1f} s {said}", flush=True)


def _out(wish: Path | None, found: dict[str, Any]) -> Path:
    """As asked, or named for the machine once that is known."""
    if wish is not None:
        return wish
    RESULTS.mkdir(exist_ok=True)
    machine = found["machine"].get("figures", {}).get("file_name", "unknown")
    return RESULTS / f"gpu-{machine}.json"


def _has(python: str, *modules: str) -> bool:
    """Whether that interpreter has them; a look, not an import."""
    look = "import sys; from importlib.util import find_spec; sys.exit(not all(map(find_spec, sys.argv[1:])))"
    return subprocess.run([python, "-c", look, *modules], check=False).returncode == 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.gpu.run", description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="one tiny shape: does the set itself work?")
    parser.add_argument("--deadline-seconds", type=float, default=DEADLINE_SECONDS)
    parser.add_argument("--parts", nargs="+", default=[], metavar="NAME", help="only these")
    parser.add_argument(
        "--vllm-python", default=sys.executable, help="interpreter of the environment that has vLLM"
    )
    parser.add_argument("--out", type=Path, help="the page; default bench/results/gpu-<machine>.json")
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the child at hand ends as well
    sys.exit(main())
