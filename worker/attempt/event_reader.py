"""Reads `events.jsonl` while the engine writes it: complete lines since the last read; counts garbage.

Boundary: bytes to events; nothing is stored. A line longer than MAX_LINE_BYTES is never held in memory.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from grpo_engine.contract.events import MAX_LINE_BYTES, Event, parse_event

PIECE_BYTES = 2**20


class EventReader:
    """A position in one events file."""

    def __init__(self, path: Path, piece_bytes: int = PIECE_BYTES) -> None:
        self._path = path
        self._piece_bytes = piece_bytes
        self._offset = 0
        self._partial = bytearray()
        self._skipping = False
        self.num_dropped = 0
        """Lines that were not events, or too long."""

    def read(self) -> list[Event]:
        """The next events in order; empty if no complete line has been written since."""
        while piece := self._next_piece():
            if events := self._take(piece):
                return events
        return []

    def _next_piece(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                piece = file.read(self._piece_bytes)
        except FileNotFoundError:
            return b""
        self._offset += len(piece)
        return piece

    def _take(self, piece: bytes) -> list[Event]:
        *whole, rest = piece.split(b"\n")
        events = []
        for ending in whole:
            self._grow(ending)
            if (event := self._finish_line()) is not None:
                events.append(event)
        self._grow(rest)
        return events

    def _grow(self, piece: bytes) -> None:
        if self._skipping:
            return
        self._partial += piece
        if len(self._partial) > MAX_LINE_BYTES:
            self._skipping = True
            self._partial.clear()

    def _finish_line(self) -> Event | None:
        line, skipped = bytes(self._partial), self._skipping
        self._partial.clear()
        self._skipping = False
        with suppress(ValidationError):
            if not skipped:
                return parse_event(line)
        self.num_dropped += 1
        return None
