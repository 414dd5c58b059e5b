"""House rules that no linter knows: files of at most 300 lines, functions of at most 60."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60


def violations(path: Path) -> Iterator[str]:
    text = path.read_text()
    if (lines := text.count("\n") + 1) > MAX_FILE_LINES:
        yield f"{path}: {lines} lines, at most {MAX_FILE_LINES}"
    if path.suffix != ".py":
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if size > MAX_FUNCTION_LINES:
                yield f"{path}:{node.lineno}: {node.name} has {size} lines, at most {MAX_FUNCTION_LINES}"


def main() -> int:
    patterns = ["*.py", "*.js", "*.css"]
    listed = subprocess.run(["git", "ls-files", *patterns], capture_output=True, text=True, check=True)
    found = [row for name in listed.stdout.split() for row in violations(Path(name))]
    print("\n".join(found) or "House rules: kept.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
