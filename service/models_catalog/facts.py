"""Facts from a model's folder, and whether training it fits this deployment's workers.

The estimate is that of `jobs/intake/estimate.py` for the job of docs/write-a-job/sizing.md. Boundary: no
weights are read, only the headers of their files.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from grpo_engine.config.job import Method
from grpo_engine.process.host_memory import usable_bytes
from service.jobs.intake.estimate import estimate
from service.jobs.intake.model_size import ModelShape, UnknownShape, model_shape
from service.jobs.intake.subject import RowTokens, Subject
from service.jobs.model.methods import parsed_method
from service.jobs.store.machines import known_machines
from service.models_catalog.schemas import FitsRead
from service.platform.catalog import CatalogEntry
from service.platform.token_counting import context_of
from service.settings import Settings

GB = 10**9
PROMPT_TOKENS, COMPLETION_TOKENS = 512, 1024


@dataclass(frozen=True)
class WorkerMemory:
    """Memory available to one process of a job on a machine with a worker."""

    num_bytes: int
    on_gpu: bool


@dataclass(frozen=True)
class ModelFacts:
    """Facts about a model; None if unknown on this machine."""

    size_bytes: int | None = None
    context_length: int | None = None
    family: str | None = None
    fits: FitsRead = field(default_factory=FitsRead)


def worker_memories(session: Session, settings: Settings) -> list[WorkerMemory]:
    """The memories of the known workers; machines that do not report theirs are left out."""
    machines = known_machines(session, settings)
    gpus = [WorkerMemory(each.gpu_memory_gb * GB, on_gpu=True) for each in machines if each.gpu_memory_gb]
    if settings.mode == "embedded" and settings.launcher == "local" and not settings.gpus:
        return [WorkerMemory(usable_bytes(), on_gpu=False)]
    return gpus


def facts_of_entry(entry: CatalogEntry, memories: Sequence[WorkerMemory], settings: Settings) -> ModelFacts:
    """The facts about a base model that are known on this machine."""
    if entry.folder is None:
        return ModelFacts(entry.size_bytes, entry.max_context_tokens)
    config = _config(entry.folder)
    limits = [limit for limit in (entry.max_context_tokens, context_of(config)) if limit is not None]
    family = config.get("model_type")
    return ModelFacts(
        entry.size_bytes or _weight_bytes(entry.folder),
        min(limits, default=None),
        family if isinstance(family, str) else None,
        _fits(entry.folder, memories, settings),
    )


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def _weight_bytes(folder: Path) -> int | None:
    try:
        return sum(path.stat().st_size for path in folder.glob("*.safetensors")) or None
    except OSError:
        return None


def _fits(folder: Path, memories: Sequence[WorkerMemory], settings: Settings) -> FitsRead:
    try:
        shape = model_shape(folder)
    except UnknownShape:
        return FitsRead()
    verdicts = {
        kind: [fits_one(shape, method, memory, settings) for memory in memories]
        for kind, method in _methods().items()
    }
    return FitsRead(**{kind: _best(found) for kind, found in verdicts.items()})


def _best(verdicts: Sequence[bool | None]) -> bool | None:
    """Whether training fits one of the machines; None if unknown."""
    if True in verdicts:
        return True
    return None if None in verdicts or not verdicts else False


def fits_one(shape: ModelShape, method: Method, memory: WorkerMemory, settings: Settings) -> bool | None:
    """Whether training fits the memory; None if that depends on lengths and batches."""
    rows = RowTokens(rows=1, longest=PROMPT_TOKENS)
    subject = Subject("", method, 1, rows, shape, memory.on_gpu, settings.runtime)
    needed = estimate(subject, []).peak_memory_bytes
    if needed is None or needed.low <= memory.num_bytes < needed.high:
        return None
    return needed.high <= memory.num_bytes


@cache
def _methods() -> dict[str, Method]:
    """Methods with default settings, for an adapter and for all weights; the grader needs no memory."""
    grader = {"type": "format", "pattern": "x"}
    given = {"max_completion_tokens": COMPLETION_TOKENS, "beta": 0.0}
    more: dict[str, dict[str, Any]] = {"lora": {}, "full": {"lora": "full"}}
    return {
        kind: parsed_method(
            {
                "type": "reinforcement",
                "reinforcement": {"grader": grader, "hyperparameters": given | settings},
            }
        )
        for kind, settings in more.items()
    }
