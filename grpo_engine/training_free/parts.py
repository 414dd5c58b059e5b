"""What a training-free run works with. Boundary: a record; `build.py` fills it."""

from __future__ import annotations

from dataclasses import dataclass

from grpo_engine.graders.pool.pool import Grading
from grpo_engine.training_free.remote import Budget
from grpo_engine.training_free.speakers import Speaker


@dataclass(frozen=True, slots=True)
class Machine:
    """What the run is made on, for its first event."""

    device: str = "none"
    dtype: str = "none"
    num_parameters: int = 0


@dataclass(frozen=True, slots=True)
class Parts:
    """What a run works with."""

    attempting: Speaker
    reflecting: Speaker
    grading: Grading
    eval_grading: Grading
    budget: Budget
    machine: Machine
