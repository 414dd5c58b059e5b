"""The log of `grpo up`: everything in a rotated file, what a person needs on the terminal."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from service.cli.operate.log_writer import KEPT, MAX_BYTES, shown

STARTED = {"event": "job started", "level": "info", "job": "ftjob-1", "model": "tiny", "worker": "w"}
REQUEST = {"event": "request", "level": "info", "path": "/v1/models", "status": 200}
FAILED = {"event": "unexpected error", "level": "error", "exception": "Traceback …\n  File …\nValueError: no"}


def run(path: Path, lines: list[str], *options: str) -> list[str]:
    """What the writer shows of these lines."""
    command = [sys.executable, "-m", "service.cli.operate.log_writer", str(path), *options]
    text = "".join(f"{line}\n" for line in lines)
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stderr.splitlines()


def test_requests_are_only_in_the_file(tmp_path: Path) -> None:
    lines = [json.dumps(each) for each in (STARTED, REQUEST, FAILED)]
    found = run(tmp_path / "up.jsonl", lines)
    assert [each.split(" ", 1)[1] for each in found] == [
        "ftjob-1 started model=tiny",
        "error: unexpected error exception=ValueError: no",
    ]
    assert (tmp_path / "up.jsonl").read_text().splitlines() == lines
    assert run(tmp_path / "all.jsonl", lines, "--all") == lines


def test_other_output_is_shown_and_becomes_a_json_line(tmp_path: Path) -> None:
    given = ["INFO:     Started server process [1]", "Traceback (most recent call last):", '["no object"]']
    assert run(tmp_path / "up.jsonl", given) == given[1:]
    stored = [json.loads(line) for line in (tmp_path / "up.jsonl").read_text().splitlines()]
    assert stored == [{"event": line, "logger": "stderr"} for line in given]


def test_a_file_that_cannot_be_written_loses_lines_only(tmp_path: Path) -> None:
    assert len(run(tmp_path / "missing" / "up.jsonl", [json.dumps(STARTED)])) == 1


def test_the_file_is_rotated_and_old_ones_are_removed(tmp_path: Path) -> None:
    lines = [json.dumps(REQUEST | {"number": number, "path": "x" * (MAX_BYTES // 3)}) for number in range(12)]
    run(tmp_path / "up.jsonl", lines)
    files = ["up.jsonl", *(f"up.jsonl.{number}" for number in range(1, KEPT + 1))]
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    assert [(tmp_path / name).read_text().splitlines() for name in files[:2]] == [lines[10:], lines[8:10]]
    assert max(path.stat().st_size for path in tmp_path.iterdir()) <= MAX_BYTES


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"event": "job ended", "job": "ftjob-1", "state": "failed"}, "ftjob-1 ended state=failed"),
        ({"event": "Traceback (most…\n  File…\nValueError: no\n", "level": "error"}, "error: ValueError: no"),
        ({"event": "sink failed", "level": "warning", "reason": "a\x1b[31m"}, "sink failed reason=a [31m"),
        ({"event": "x", "level": "error", "long": "y" * 1000}, "…"),
        ({"event": "sweeping", "level": "info"}, None),
    ],
)  # fmt: skip
def test_a_line_for_a_person_is_short_and_plain(fields: dict[str, Any], text: str | None) -> None:
    found = shown(fields)
    assert found is None if text is None else str(found).endswith(text)
