"""Reads complete lines of `events.jsonl` while the engine writes it, and counts lines that are not events."""

import errno
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from grpo_engine.contract.events import MAX_LINE_BYTES, Event, parse_event

BATCH_BYTES = 2**20
"""A batch ends with the event that makes it at least this large."""


class EventReader:
    """A position in one events file. At most one line and one batch are held in memory."""

    def __init__(self, path: Path, batch_bytes: int = BATCH_BYTES) -> None:
        self._path = path
        self._batch_bytes = batch_bytes
        self._offset = 0
        self._is_skipping = False
        self.num_dropped = 0
        """Lines that were not events, or longer than MAX_LINE_BYTES."""

    def read(self) -> list[Event]:
        """The next events in order; empty if no complete line has been written since.

        Raises FileNotFoundError if the file was deleted; the engine would continue to write to it.
        """
        events: list[Event] = []
        num_bytes = 0
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            if self._offset:
                raise FileNotFoundError(errno.ENOENT, "the engine's run directory was deleted") from None
            return events
        with file:
            file.seek(self._offset)
            while num_bytes < self._batch_bytes and (line := file.readline(MAX_LINE_BYTES + 1)):
                is_whole = line.endswith(b"\n")
                if not is_whole and len(line) <= MAX_LINE_BYTES:
                    break  # the engine is still writing it
                self._offset += len(line)
                if is_whole and not self._is_skipping and (event := _parsed(line)) is not None:
                    events.append(event)
                    num_bytes += len(line)
                elif is_whole:
                    self.num_dropped += 1
                self._is_skipping = not is_whole
        return events


def _parsed(line: bytes) -> Event | None:
    with suppress(ValidationError):
        return parse_event(line)
    return None
