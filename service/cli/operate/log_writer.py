"""`python -m service.cli.operate.log_writer FILE [--all]`: writes a log file and shows some of its lines.

Reads lines on standard input until its end. All of them go to the file as JSON lines, which is rotated; jobs
that start or end, warnings and errors go to standard error. It is a separate process, so that the log
survives the process that started it. Boundary: it imports only the standard library, to start at once.
"""

import argparse
import json
import logging
import signal
import sys
import time
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

MAX_BYTES = 10_000_000
"""Size at which a file is rotated."""
KEPT = 4
"""Number of older files: at most 50 MB in all."""
JOB_EVENTS = {"job started", "job ended", "job requeued", "export ended"}
SHOWN_LEVELS = {"warning", "error", "critical"}
_IN_FILE_ONLY = {"timestamp", "level", "event", "exception", "tenant", "worker", "fence", "attempt", "job"}
MAX_SHOWN = 300


def parsed(line: bytes) -> tuple[dict[str, Any], bool]:
    """The line's fields, and whether it is a line of the service's log; another line becomes an `event`."""
    try:
        fields = json.loads(line)
    except ValueError:
        fields = None
    if isinstance(fields, dict) and "event" in fields:
        return fields, True
    return {"event": line.decode("utf-8", "replace").rstrip("\n"), "logger": "stderr"}, False


def shown(fields: dict[str, Any]) -> str | None:
    """One line for a person; None: only for the file."""
    event, level = str(fields["event"]), str(fields.get("level", "info"))
    if event not in JOB_EVENTS and level not in SHOWN_LEVELS:
        return None
    if event.startswith("Traceback "):
        event = event.rstrip().splitlines()[-1]
    clock = time.strftime("%H:%M:%S")
    about = {name: value for name, value in fields.items() if name not in _IN_FILE_ONLY}
    if exception := str(fields.get("exception", "")).strip():
        about["exception"] = exception.splitlines()[-1]
    details = " ".join(f"{name}={value}" for name, value in about.items() if value not in (None, ""))
    what = event.removeprefix("job ") if event in JOB_EVENTS else f"{level}: {event}"
    text = " ".join(part for part in (clock, str(fields.get("job") or ""), what, details) if part)
    text = "".join(each if each.isprintable() else " " for each in text)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"


def main() -> None:
    """Copy lines until the last writer has ended."""
    parser = argparse.ArgumentParser(prog="log_writer", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--all", action="store_true", help="show every line, as JSON")
    given = parser.parse_args()
    # only the end of the input ends this process, so that no last lines are lost
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    logging.raiseExceptions = False  # a full disk loses lines
    rotation: dict[str, Any] = {"maxBytes": MAX_BYTES, "backupCount": KEPT, "delay": True}
    file = RotatingFileHandler(given.file, encoding="utf-8", **rotation)
    for line in sys.stdin.buffer:
        fields, is_ours = parsed(line)
        whole = line.decode("utf-8", "replace").rstrip("\n")
        file.emit(logging.makeLogRecord({"msg": whole if is_ours else json.dumps(fields)}))
        if given.all:
            text = whole
        elif is_ours:
            text = shown(fields)
        else:
            text = None if line.startswith(b"INFO:") else fields["event"]
        if text is not None:
            with suppress(OSError):  # the terminal may be gone
                print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
