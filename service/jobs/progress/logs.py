"""A job's log: the output of its engine's processes, in pieces of whole lines, bounded.

A worker appends under its fence; a job keeps the newest `MAX_JOB_BYTES`. Sequence numbers are those of lines
and have no gaps, so the number of dropped lines follows from the oldest piece.
Boundary: the caller has masked secrets, and checks access and the fence.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from pydantic import BaseModel
from sqlalchemy import delete, func, insert, select
from sqlalchemy.orm import Session

from service.platform.db import Database
from service.platform.tables.logs import LogPiece

MAX_JOB_BYTES = 8 * 2**20
"""Size of a job's log. Older lines are dropped."""
MAX_LINE_CHARACTERS = 2000
PIECE_BYTES = 2**16
"""A piece ends with the line that exceeds this size."""
PAGE_BYTES = 2**20
LINES_AT_ONCE = 20_000
"""Maximum number of lines read at once. A page of blank lines would have a million."""
_PIECES_AT_ONCE = PAGE_BYTES // PIECE_BYTES

# colours and other commands for terminals
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*\x07?|[@-Z\\^_])")
# control characters except line feed and tab, and marks that end a line or change the direction of text
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(frozen=True)
class PrintedLines:
    """Consecutive lines of one process."""

    rank: int | None
    lines: Sequence[str]


class LogLineRead(BaseModel):
    """A line that a process of the job's engine printed, without control characters and secrets."""

    sequence: int
    """Number of the line in the job's log, for `after`."""
    created_at: float
    """When the service stored the line, a few seconds after it was printed; Unix seconds."""
    attempt: int
    """Number of the attempt that printed it, from 1."""
    rank: int | None
    """Number of the training process; null: the process that starts them on a cluster."""
    text: str
    """The line, cut after 2,000 characters."""

    @classmethod
    def of(cls, piece: LogPiece, sequence: int, text: str) -> Self:
        whose = {"created_at": piece.created_at, "attempt": piece.attempt, "rank": piece.rank}
        return cls(sequence=sequence, text=text, **whose)


def without_escapes(text: str) -> str:
    """Text without the commands that programs send to a terminal."""
    return _ESCAPES.sub("", text)


def readable(line: str) -> str:
    """A line for storage: the text after its last carriage return, shortened, without control characters."""
    shown = _CONTROLS.sub("\ufffd", line.rstrip("\r").rsplit("\r", 1)[-1])
    return shown if len(shown) <= MAX_LINE_CHARACTERS else f"{shown[: MAX_LINE_CHARACTERS - 1]}…"


def last_sequence(session: Session, job_id: str) -> int:
    """Number of the newest line; 0 if there is none."""
    return session.scalar(select(func.max(LogPiece.sequence)).where(LogPiece.job_id == job_id)) or 0


def append(
    session: Session, job_id: str, attempt: int, printed: Iterable[PrintedLines], *, after: int
) -> int:
    """Store lines with numbers above `after`, drop the oldest ones above the bound; returns the last number.

    If the newest line is not `after`, these lines are already stored, and nothing is written. The caller has
    locked the job's row.
    """
    newest = select(LogPiece.sequence, LogPiece.end_bytes).where(LogPiece.job_id == job_id)
    row = session.execute(newest.order_by(LogPiece.sequence.desc()).limit(1)).one_or_none()
    sequence, end_bytes = (row.sequence, row.end_bytes) if row else (0, 0)
    if sequence != after:
        return int(sequence)
    rows = []
    for rank, lines in ((each.rank, piece) for each in printed for piece in pieces(each.lines)):
        text = "\n".join(lines)
        sequence += len(lines)
        end_bytes += len(text.encode()) + 1
        place = {"job_id": job_id, "sequence": sequence, "num_lines": len(lines), "end_bytes": end_bytes}
        rows.append({**place, "attempt": attempt, "rank": rank, "text": text})
    if rows:
        session.execute(insert(LogPiece), rows)
        old = LogPiece.end_bytes <= end_bytes - MAX_JOB_BYTES
        session.execute(delete(LogPiece).where(LogPiece.job_id == job_id, old))
    return int(sequence)


def pieces(lines: Iterable[str]) -> Iterator[list[str]]:
    """The lines in lists of about `PIECE_BYTES`."""
    piece, size = list[str](), 0
    for line in lines:
        piece.append(line)
        size += len(line.encode()) + 1
        if size > PIECE_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def lines_after(session: Session, job_id: str, after: int, limit: int) -> list[LogLineRead]:
    """Lines in order, at most `limit`, and about `PAGE_BYTES`.

    If lines after `after` were dropped, the first line states how many, with the number of the last of them.
    """
    query = select(LogPiece).where(LogPiece.job_id == job_id, LogPiece.sequence > after)
    found = session.scalars(query.order_by(LogPiece.sequence).limit(_PIECES_AT_ONCE)).all()
    lines: list[LogLineRead] = []
    for piece in found:
        first = piece.sequence - piece.num_lines + 1
        if not lines and first - 1 > after:
            lines.append(_dropped(piece, first - 1))
        for number, text in enumerate(piece.text.split("\n"), first):
            if len(lines) >= limit:
                return lines
            if number > after:
                lines.append(LogLineRead.of(piece, number, text))
    return lines


def as_text(database: Database, job_id: str) -> Iterator[str]:
    """The whole log, page by page, with a line before each attempt after the first."""
    after, attempt = 0, 1
    while True:
        with database.reading() as session:
            page = lines_after(session, job_id, after, LINES_AT_ONCE)
        if not page:
            return
        texts = []
        for line in page:
            if line.attempt != attempt:
                attempt = line.attempt
                texts.append(f"--- attempt {attempt} ---\n")
            texts.append(f"[rank {line.rank}] {line.text}\n" if line.rank else f"{line.text}\n")
        yield "".join(texts)
        after = page[-1].sequence


def _dropped(piece: LogPiece, count: int) -> LogLineRead:
    kept = MAX_JOB_BYTES // 2**20
    text = f"[{count:,} earlier lines were dropped: a job keeps the newest {kept} MiB of its log]"
    return LogLineRead.of(piece, count, text).model_copy(update={"rank": None})
