"""Typical mistakes: one clear line, an exit code, and no traceback."""

import io
import json
from pathlib import Path

import pytest

from tests.service.cli.command import Grpo

ODD = {"model": 5, "training_file": 7, "method": "x"}
GRADER = {"type": "numeric", "reference": "{{item.answer}}"}
MISTAKES = {
    "a job of wrong types": (("sweep", "odd.json", "--set", "seed=1,2"), 1, "method must be an object"),
    "answers that are no text": (
        ("grade", "grader.json", "--rows", "rows.jsonl", "--answers", "bytes"),
        1,
        "bytes is not UTF-8",
    ),
    "a configuration that is no text": (("import-trl", "bytes"), 1, "is not UTF-8"),
    "an output in no folder": (
        ("import-trl", "empty.yaml", "--force", "-o", "nowhere/job.json"),
        1,
        "nowhere/job.json: No such file or directory",
    ),
    "an empty id": (("status", ""), 2, "'' is not an id"),
    "an id that is a path": (("manifest", "a/b?c"), 2, "'a/b?c' is not an id"),
    "a log of no id": (("logs", "../files"), 2, "'../files' is not an id"),
    "a URL with a bad port": (("--url", "http://localhost:x", "list"), 1, "http://localhost:x is not a"),
    "a URL that ends early": (("--url", "http://[::1", "list"), 1, "http://[::1 is not a URL"),
    "a key in quotation marks": (("--api-key", "“sk-1”", "list"), 1, "no API key has spaces or special"),
    "a key over two lines": (("--api-key", "sk-1\n", "list"), 1, "no API key has spaces or special"),
    "a question without a terminal": (("delete", "ftjob-1", "--json"), 1, "aborted; nothing was changed"),
}


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


@pytest.mark.parametrize(("arguments", "code", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_explained(
    offline: Grpo,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    Path("odd.json").write_text(json.dumps(ODD))
    Path("grader.json").write_text(json.dumps(GRADER))
    Path("rows.jsonl").write_text('{"prompt": "1+1", "answer": 2}\n')
    Path("empty.yaml").write_text("{}")
    Path("bytes").write_bytes(b"\xff\xfe")
    done = offline.run(*arguments)
    shown = " ".join(done.stderr.replace("│", " ").split())
    assert (done.returncode, message in shown, "Traceback" in shown) == (code, True, False), done.stderr
