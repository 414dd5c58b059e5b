"""The page of the GPU set's results.

Reads what each part has written, and adds shares of the machine's limits, and ratios to TRL and to the
figures that prime-rl has published.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from bench.gpu.plan import Part, overlap_names, step_name
from bench.trl.compare import RATIOS, unfairness_of
from bench.trl.side import read_answer

PUBLISHED = {
    "0.6b": {"tokens_per_second": 13_342, "peak_memory_gib": 5.15},
    "4b": {"tokens_per_second": 6_229, "peak_memory_gib": 23.3},
}
"""prime-rl's `benchmarks/baselines`: one H100, LoRA of rank 16, sequences of 16,384 tokens."""
NOTES = {
    "tokens_per_second": "training cells: all tokens that pass through the model, prompts counted once; "
    "sampling cells: completion tokens of all rows",
    "flops": "required operations: forward and backward through frozen weights, causal attention, and "
    "the output layer for predicted tokens; recomputation is not counted",
    "mfu": "flops ÷ seconds ÷ nominal_flops_per_second: the data sheet's dense bfloat16 rate",
    "share_of_matrix_rate": "the same, relative to the measured matrix_flops_per_second",
    "share_of_copy_rate": "bytes that decoding must read ÷ seconds ÷ copy_bytes_per_second (measured)",
    "peak_memory_bytes": "GPU: tensors in this cell; CPU: the process up to this cell",
    "prime_rl": "published for one H100, without saying whether its 16,384 tokens are one sequence; ours is "
    "a single one, which needs the most attention",
    "weights": "random, in the models' shapes",
}


def page_of(settings: dict[str, Any], parts: Iterable[Part], found: dict[str, Any]) -> dict[str, Any]:
    machine = found["machine"].get("figures", {})
    return {
        "machine": found["machine"],
        "settings": settings,
        "notes": NOTES,
        "parts": {name: _with_shares(result, machine) for name, result in found.items() if name != "machine"},
        "against_trl": _against_trl(parts, found),
        "against_prime_rl": _against_published(found),
        "overlap": _overlap(found),
    }


def _with_shares(result: dict[str, Any], machine: dict[str, Any]) -> dict[str, Any]:
    """Add to each cell's figures their shares of the machine's limits."""
    if "cells" not in result:
        return result
    cells = [
        {**cell, "figures": {**cell["figures"], **shares(cell["figures"], machine)}}
        if "figures" in cell
        else cell
        for cell in result["cells"]
    ]
    return {**result, "cells": cells}


def shares(figures: dict[str, Any], machine: dict[str, Any]) -> dict[str, float]:
    """Shares of the limits that are known."""
    limits = {
        "mfu": ("flops", "nominal_flops_per_second"),
        "share_of_matrix_rate": ("flops", "matrix_flops_per_second"),
        "share_of_copy_rate": ("bytes", "copy_bytes_per_second"),
    }
    return {
        name: figures[amount] / figures["seconds"] / machine[limit]
        for name, (amount, limit) in limits.items()
        if amount in figures and machine.get(limit)
    }


def _against_trl(parts: Iterable[Part], found: dict[str, Any]) -> dict[str, Any]:
    """Ratios (ours ÷ TRL) of the pairs of which both sides have run, and why a comparison may be unfair."""
    pairs = {}
    for part in parts:
        if part.kind != "ours" or part.steps is None or part.ours:
            continue
        name = step_name(part.shape, part.steps)
        sides = [found.get(f"{name}-{side}", {}).get("figures") for side in ("ours", "trl")]
        if all(sides):
            ours, trl = sides
            ratios = {ratio: ours[key] / trl[key] for ratio, key in RATIOS.items() if trl[key]}
            complaints = unfairness_of({"ours": ours, "trl": trl})
            pairs[name] = {"ratios": ratios, "complaints": complaints}
    return pairs


def _overlap(found: dict[str, Any]) -> dict[str, float]:
    """By shape: seconds per step if sampling runs beside training ÷ if they take turns."""
    ratios = {}
    for shape in {name.split("-")[1] for name in found if name.startswith("model-")}:
        in_turn, ahead = (found.get(name, {}).get("figures") for name in overlap_names(shape))
        if in_turn and ahead:
            ratios[shape] = ahead["seconds_per_step"] / in_turn["seconds_per_step"]
    return ratios


def _against_published(found: dict[str, Any]) -> dict[str, Any]:
    """Ratios (ours ÷ prime-rl) of the two cells with a single sequence."""
    compared: dict[str, Any] = {}
    for shape, published in PUBLISHED.items():
        cells = found.get(f"train-{shape}", {}).get("cells", [])
        for entry in cells:
            if "figures" in entry and entry["cell"]["group_size"] == 1:
                way = "recomputed" if entry["figures"]["activations_recomputed"] else "kept"
                compared.setdefault(shape, {"published": published})[way] = _ratios(
                    entry["figures"], published
                )
    return compared


def _ratios(figures: dict[str, Any], published: dict[str, float]) -> dict[str, float]:
    gib = figures["peak_memory_bytes"] / 2**30
    return {
        "tokens_per_second": figures["tokens_per_second"],
        "peak_memory_gib": gib,
        "tokens_per_second_ratio": figures["tokens_per_second"] / published["tokens_per_second"],
        "peak_memory_ratio": gib / published["peak_memory_gib"],
    }


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a child process."""

    in_time: bool
    trouble: str = ""
    """Why the child failed; empty if it succeeded."""


def result_of(part: Part, output: Path, ended: Ended) -> dict[str, Any]:
    """The results that the child has written, even if it was cut short."""
    if part.kind == "tests" and output.exists():
        return read_junit(output)
    if part.cells:
        found = json.loads(output.read_text())["cells"] if output.exists() else []
        return _of_cells(part, found, ended)
    if ended.trouble:
        return {"status": "failed", "reason": ended.trouble}
    if part.steps is not None:
        return {"status": "done", "figures": read_answer(output).figures()}
    return {"status": "done", **json.loads(output.read_text())}


def read_junit(report: Path) -> dict[str, Any]:
    """The result of each test in a JUnit report."""
    found = {
        f"{case.get('classname')}::{case.get('name')}": case
        for case in ElementTree.parse(report).iter("testcase")
    }
    trouble = {
        name: str(problem.get("message"))[:1000]
        for name, case in found.items()
        for problem in (*case.iter("failure"), *case.iter("error"))
    }
    seconds = {name: float(case.get("time", 0)) for name, case in found.items()}
    return {"status": "failed" if trouble or not found else "done", "failed": trouble, "seconds_of": seconds}


def _of_cells(part: Part, found: list[dict[str, Any]], ended: Ended) -> dict[str, Any]:
    """The result of a part with cells. If it was cut after some cells, it counts as done with those cells."""
    missing = [{"not_run": ended.trouble}] * (len(part.cells) - len(found))
    cells = [
        {"cell": asdict(cell), **entry} for cell, entry in zip(part.cells, [*found, *missing], strict=True)
    ]
    broke = bool(ended.trouble) and (ended.in_time or not found)
    failed = broke or any("error" in entry for entry in found)
    reason = {"reason": ended.trouble} if ended.trouble else {}
    return {"status": "failed" if failed else "done", **reason, "cells": cells}
