"""Starts the children of the GPU set, one at a time, and reads what each has left behind.

A child has its own process group, which ends with it, at its limit, or with this process's own end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.gpu.parts import Part, Sizes
from bench.trl.compare import Workload, prepare
from bench.trl.side import Spec, read_answer
from grpo_engine.process.environment import DEFAULTS

LORA_RANK, LEARNING_RATE, DTYPE, SEED = 16, 1e-4, "bfloat16", 0
TOLD_CHARACTERS = 4000
"""Of a failed child's last words: here; its very last line is the page's reason."""


class Runner:
    def __init__(self, folder: Path, sizes: Sizes, device: str, vllm_python: str | None) -> None:
        """`vllm_python`: None where vLLM is not to be had."""
        self.folder = folder
        self.sizes = sizes
        self.device = device
        self.vllm_python = vllm_python
        self.threads = len(os.sched_getaffinity(0))

    def run(self, part: Part, seconds: float) -> dict[str, Any]:
        """The part's result: `status`, and its figures, its cells or the reason why there are none."""
        if part.sampler == "vllm" and self.vllm_python is None:
            return {"status": "not_run", "reason": "vLLM is not installed here (--vllm-python)"}
        began = time.monotonic()
        folder = self.folder / part.name
        told, heard, log = folder / "told.json", folder / "heard.json", folder / "log"
        spec = self._spec(part)
        folder.mkdir(exist_ok=True)
        told.write_text(json.dumps(self._told(part, spec, began + seconds)))
        module = f"bench.trl.{part.kind}" if part.steps is not None else "bench.gpu.child"
        python = self.vllm_python if part.sampler == "vllm" else None
        command = [python or sys.executable, "-m", module, str(told), str(heard)]
        ended = in_a_group(command, log, began + seconds - time.monotonic())
        result = {"seconds": time.monotonic() - began, **result_of(part, heard, ended)}
        cut = not ended.in_time and seconds < part.seconds  # by the deadline, not by its own share
        if cut and not any("error" in cell for cell in result.get("cells", ())):
            return result | {"status": "done" if heard.exists() else "not_run"}
        return result

    def _told(self, part: Part, spec: Spec, until: float) -> dict[str, Any]:
        if part.steps is not None:
            return asdict(spec)
        return {
            "kind": part.kind,
            "spec": asdict(spec),
            "cells": [asdict(cell) for cell in part.cells],
            "shape": asdict(self.sizes.shapes[part.shape]) if part.shape else None,
            "passes": self.sizes.passes,
            "until": until,
        }

    def _spec(self, part: Part) -> Spec:
        """What an engine is told; an end-to-end run brings its rows."""
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
            steps=self.sizes.num_steps,
        )
        if cell is not None:
            return prepare(work, self.folder / part.name, self.threads, SEED)
        return Spec(rows="", seed=SEED, threads=self.threads, **asdict(work))


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child came to its end."""

    in_time: bool
    trouble: str = ""
    """What kept it from a good end; empty: nothing."""


def in_a_group(command: list[str], log: Path, seconds: float) -> Ended:
    """Run it for `seconds` at most, then kill it with all that it has started."""
    own = {**DEFAULTS, "HF_HUB_OFFLINE": "1"}
    # With several GPUs in sight TRL would split its batch over all of them.
    environment = {"CUDA_VISIBLE_DEVICES": "0", **os.environ, **own}
    with log.open("wb") as out:
        # a SIGTERM waits until there is a child that can be ended
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        child = subprocess.Popen(
            command,
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_hear_sigterm,
        )
        try:
            _hear_sigterm()
            status = child.wait(seconds)
        except subprocess.TimeoutExpired:
            return Ended(False, f"stopped after its {seconds:.0f} s")
        finally:
            with suppress(ProcessLookupError):  # it has ended and left nothing behind
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    if status == 0:
        return Ended(True)
    said = log.read_text(errors="replace").strip()[-TOLD_CHARACTERS:]
    print(said, file=sys.stderr, flush=True)
    return Ended(True, f"its process ended with {status}: {(said.splitlines() or ['silent'])[-1]}")


def _hear_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def result_of(part: Part, heard: Path, ended: Ended) -> dict[str, Any]:
    """What the child has written, even where it did not come to its end."""
    if part.cells:
        found = json.loads(heard.read_text())["cells"] if heard.exists() else []
        return _of_cells(part, found, ended)
    if ended.trouble:
        return {"status": "failed", "reason": ended.trouble}
    if part.steps is not None:
        return {"status": "done", "figures": read_answer(heard).figures()}
    return {"status": "done", **json.loads(heard.read_text())}


def _of_cells(part: Part, found: list[dict[str, Any]], ended: Ended) -> dict[str, Any]:
    """Cut after some of its cells, a part is done as far as it came: the rest did not fit."""
    missing = [{"not_run": ended.trouble}] * (len(part.cells) - len(found))
    cells = [
        {"cell": asdict(cell), **entry} for cell, entry in zip(part.cells, [*found, *missing], strict=True)
    ]
    broke = bool(ended.trouble) and (ended.in_time or not found)
    failed = broke or any("error" in entry for entry in found)
    reason = {"reason": ended.trouble} if ended.trouble else {}
    return {"status": "failed" if failed else "done", **reason, "cells": cells}
