"""One part of the GPU set in a process of its own, whose peak memory is therefore its own.

    python -m bench.gpu.child TOLD.json HEARD.json

What is measured is written after each cell, so that an end half-way loses only the cell at hand. A cell that
fails is recorded with its error; one that no longer fits into the part's time is recorded as not run.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from bench import machine
from bench.gpu.parts import Cell
from bench.trl.models import Shape, words_tokenizer
from bench.trl.side import Spec
from grpo_engine.contract.errors import EngineError
from grpo_engine.training.run_description import library_versions

Measure = Callable[[Cell, float], dict[str, Any]]
"""A cell and the moment (`time.monotonic`) by which it must end → its figures."""
COPIED_BYTES = {"cpu": 2**26, "cuda": 2**31}
NOMINAL = (
    ("H200", 989e12),
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H100", 989e12),
    ("A100", 312e12),
)
"""Dense bfloat16 operations a second by NVIDIA's data sheets; the first name that fits."""


def main() -> None:
    told, heard = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    spec = Spec(**told["spec"])
    torch.set_num_threads(spec.threads)
    if told["kind"] == "machine":
        save(heard, {"figures": describe(spec)})
    elif told["kind"] == "model":
        save(heard, {"figures": make_model(spec, Shape(**told["shape"]))})
    else:
        cells = [Cell(**cell) for cell in told["cells"]]
        measure_cells(opened(told["kind"], spec, cells, told["passes"]), cells, told["until"], heard)


def opened(kind: str, spec: Spec, cells: list[Cell], passes: int) -> Measure:
    """Imported where it is needed: a machine's description waits for no engine."""
    if kind == "train":
        from bench.gpu.train import open_training

        return open_training(spec, passes)
    from bench.gpu.sample import open_sampling

    return open_sampling(spec, cells)


def measure_cells(measure: Measure, cells: list[Cell], until: float, heard: Path) -> None:
    """Each cell's figures, or its error, or why it was not begun."""
    found: list[dict[str, Any]] = []
    per_token = 0.0
    for cell in cells:
        began = time.monotonic()
        expected = per_token * cell.completion_tokens
        if began + expected > until:
            reason = f"it needs about {expected:.0f} s, and {until - began:.0f} s are left to its part"
            found.append({"not_run": reason})
        else:
            found.append(_measured(measure, cell, until))
            per_token = (time.monotonic() - began) / cell.completion_tokens
        save(heard, {"cells": found})


def _measured(measure: Measure, cell: Cell, until: float) -> dict[str, Any]:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        return {"figures": {**measure(cell, until), **memory()}}
    except (RuntimeError, ValueError, EngineError) as error:
        # among them: out of memory, and a sampler that refuses these sizes; other cells may still fit
        return {"error": f"{type(error).__name__}: {str(error)[:1000]}"}


def memory() -> dict[str, float]:
    """Of a GPU: this cell's peak, and all that is in use on the device now (vLLM has a pool of its own). Of a
    CPU: the process's peak so far."""
    if not torch.cuda.is_available():
        return {"peak_memory_bytes": float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)}
    free, total = torch.cuda.mem_get_info()
    return {
        "peak_memory_bytes": float(torch.cuda.max_memory_allocated()),
        "peak_reserved_bytes": float(torch.cuda.max_memory_reserved()),
        "device_in_use_bytes": float(total - free),
    }


def describe(spec: Spec) -> dict[str, Any]:
    """The machine: its name, what it can do at most, and the libraries that are measured on it."""
    dtype, on_gpu = getattr(torch, spec.dtype), torch.device(spec.device).type == "cuda"
    name = torch.cuda.get_device_name() if on_gpu else machine.machine_name(spec.device)
    other = {each: version(each) for each in ("trl", "vllm") if find_spec(each)}
    return {
        "name": name,
        "file_name": machine.machine_name(spec.device),
        "nominal_flops_per_second": next((rate for part, rate in NOMINAL if part in name), None),
        "matrix_flops_per_second": machine.matrix_rate(spec.device, dtype, spec.threads),
        "copy_bytes_per_second": copy_rate(spec.device),
        "memory_bytes": torch.cuda.mem_get_info()[1] if on_gpu else None,
        "threads": spec.threads,
        "versions": {**library_versions(), **other},
    }


def copy_rate(device: str) -> float:
    """Bytes a second that a large copy reads and writes, the fastest of some."""
    size = COPIED_BYTES[torch.device(device).type]
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target, fastest = torch.empty_like(source), float("inf")
    for _ in range(machine.ROUNDS):
        settle()
        began = time.perf_counter()
        target.copy_(source)
        settle()
        fastest = min(fastest, time.perf_counter() - began)
    return 2 * size / fastest


def settle() -> None:
    """Wait until the device has done all that it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def make_model(spec: Spec, shape: Shape) -> dict[str, Any]:
    """Random weights of that shape, drawn on the device itself: a CPU needs a minute for 4 billion."""
    config = shape.config()
    config.tie_word_embeddings = True  # as the Qwen3 models of these sizes
    torch.manual_seed(spec.seed)
    began = time.perf_counter()
    with torch.device(spec.device):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, spec.dtype))
    model.generation_config = GenerationConfig(eos_token_id=1, pad_token_id=0)
    made = time.perf_counter()
    model.save_pretrained(spec.model)
    words_tokenizer(shape.vocab).save_pretrained(spec.model)
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "make_seconds": made - began,
        "save_seconds": time.perf_counter() - made,
    }


def save(path: Path, found: dict[str, Any]) -> None:
    """Whole or not at all: the reader may come at any moment."""
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(found, indent=2) + "\n")
    os.replace(beside, path)


if __name__ == "__main__":
    main()
