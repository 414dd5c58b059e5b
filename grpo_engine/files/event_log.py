"""`events.jsonl`: append-only, one event per line, numbered without gaps across attempts.

An unfinished line of a killed engine is cut off. A resumed run repeats the steps after its checkpoint; their
events that the file (or the worker) already holds are not written again. In place of a step that the worker
holds, a phase is written, so that the repetition does not look like a hang.
"""

import os
import time
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError

from grpo_engine.contract.events import (
    BaseEvent,
    Evaluated,
    Failed,
    PhaseChanged,
    RolloutsRecorded,
    StepFinished,
    StepSkipped,
    Warned,
    parse_event,
)


class Journal:
    def __init__(self, path: Path, *, first_sequence: int = 1, published_step: int = 0) -> None:
        self.path = path
        self.next_sequence = first_sequence
        self.published_step = published_step
        self.ends_with_failure = False
        """Whether the last recorded event was `failed`."""
        self._seen: set[tuple[object, ...]] = set()
        self._recover()
        self._file: BinaryIO = path.open("ab")

    def write(self, event: BaseEvent) -> BaseEvent | None:
        """Number, write and return the event; None if it is already published."""
        key = _key(event)
        if key is not None and key in self._seen:
            return None
        if self._published(event):
            if isinstance(event, StepFinished | StepSkipped):
                self._append(PhaseChanged(phase="training", step=event.step))
            return None
        numbered = self._append(event)
        if key is not None:
            self._seen.add(key)
        return numbered

    def _append(self, event: BaseEvent) -> BaseEvent:
        numbered = event.model_copy(update={"sequence": self.next_sequence, "at": time.time()})
        self._file.write(numbered.model_dump_json().encode() + b"\n")
        self._file.flush()
        self.next_sequence += 1
        return numbered

    def close(self) -> None:
        self._file.close()

    def _published(self, event: BaseEvent) -> bool:
        training = isinstance(event, StepFinished | StepSkipped) or (
            isinstance(event, RolloutsRecorded) and event.split == "train"
        )
        return training and getattr(event, "step", 0) <= self.published_step

    def _recover(self) -> None:
        """Read the existing file; drop the first line that is not an event and everything after it."""
        if not self.path.exists():
            return
        good = 0
        with self.path.open("rb") as lines:
            for line in lines:
                try:
                    event = parse_event(line)
                except ValidationError:
                    break
                if not line.endswith(b"\n"):
                    break
                good += len(line)
                self.next_sequence = event.sequence + 1
                self.ends_with_failure = isinstance(event, Failed)
                if (key := _key(event)) is not None:
                    self._seen.add(key)
        os.truncate(self.path, good)


def _key(event: BaseEvent) -> tuple[object, ...] | None:
    """Identity of an event that must appear only once; None for an event that may repeat."""
    match event:
        case StepFinished() | StepSkipped():
            return ("step", event.step)
        case RolloutsRecorded():
            return ("rollouts", event.split, event.name, event.step, event.first)
        case Evaluated():
            return ("evaluated", event.name, event.step)
        case Warned(step=int()):
            return ("warning", event.code, event.step)
    return None
