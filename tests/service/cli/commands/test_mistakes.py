"""Typical mistakes: one clear line, an exit code, and no traceback."""

import io
import json
from pathlib import Path

import pytest

from tests.conftest import on_sqlite
from tests.service.cli.command import Grpo

pytestmark = on_sqlite

ODD = {"model": 5, "training_file": 7, "method": "x"}
GRADER = {"type": "numeric", "reference": "{{item.answer}}"}
MISTAKES = {
    "a job of wrong types": (("sweep", "odd.json", "--set", "seed=1,2"), 1, "method must be an object"),
    "a job with NaN": (("submit", "nan.json"), 1, "nan.json is not JSON: NaN is not a JSON number"),
    "a job with a key twice": (("submit", "twice.json"), 1, "the key 'seed' appears twice in one object"),
    "a job that is nested too deeply": (("submit", "deep.json"), 1, "deep.json is not JSON: nested too"),
    "a job with half a character": (("submit", "half.json"), 1, "not valid UTF-8: "),
    "answers that are no text": (
        ("grade", "grader.json", "--rows", "rows.jsonl", "--answers", "bytes"),
        1,
        "bytes is not UTF-8",
    ),
    "a configuration that is no text": (("import-trl", "bytes"), 1, "is not UTF-8"),
    "a configuration that is too deep": (("import-trl", "deep.json"), 1, "deep.json is nested too deeply"),
    "a configuration that contains itself": (("import-trl", "self.yaml"), 1, "a value contains itself"),
    "answers that are too deep": (
        ("grade", "grader.json", "--rows", "rows.jsonl", "--answers", "deep.json"),
        1,
        "deep.json, line 1 is not JSON: nested too deeply",
    ),
    "an output in no folder": (
        ("import-trl", "empty.yaml", "--force", "-o", "nowhere/job.json"),
        1,
        "nowhere/job.json: No such file or directory",
    ),
    "an unknown trainer": (("import-trl", "empty.yaml", "--from", "llm"), 2, "'llm' is not one of"),
    "an empty id": (("status", ""), 2, "'' is not an id"),
    "an id that is a path": (("manifest", "a/b?c"), 2, "'a/b?c' is not an id"),
    "a log of no id": (("logs", "../files"), 2, "'../files' is not an id"),
    "a URL with a bad port": (("--url", "http://localhost:x", "list"), 1, "http://localhost:x is not a"),
    "a URL that ends early": (("--url", "http://[::1", "list"), 1, "http://[::1 is not a URL"),
    "a key in quotation marks": (("--api-key", "“sk-1”", "list"), 1, "no API key has spaces or special"),
    "a key over two lines": (("--api-key", "sk-1\n", "list"), 1, "no API key has spaces or special"),
    "a question that is no UTF-8": (("chat", "tiny", "a\udcff"), 1, "not valid UTF-8: "),
    "a name that is no UTF-8": (("edit", "ftjob-1", "--name", "a\udcff"), 1, "not valid UTF-8: "),
    "a file whose name is no UTF-8": (("files", "upload", "a\udcff.jsonl"), 1, "not valid UTF-8: filename="),
    "a question without a terminal": (("delete", "ftjob-1", "--json"), 1, "aborted; nothing was changed"),
}


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
    Path("nan.json").write_text('{"seed": NaN}')
    Path("twice.json").write_text('{"seed": 1, "seed": 2}')
    Path("deep.json").write_text('{"seed": ' + "[" * 10**5)
    Path("self.yaml").write_text("beta: &a [*a]")
    Path("half.json").write_text('{"name": "\\ud83d"}')
    Path("bytes").write_bytes(b"\xff\xfe")
    Path("a\udcff.jsonl").write_text('{"prompt": "1+1", "answer": 2}\n')
    done = offline.run(*arguments)
    shown = " ".join(done.stderr.replace("│", " ").split())
    assert (done.returncode, message in shown, "Traceback" in shown) == (code, True, False), done.stderr
