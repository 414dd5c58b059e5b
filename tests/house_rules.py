"""House rules that no linter checks.

A file has at most 300 lines, a function at most 60, a folder at most 15 modules, and no two public classes
of a package have the same name.
"""

import ast
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60
MAX_FOLDER_MODULES = 15
PACKAGES = ("grpo_engine", "service", "worker")
SOURCES = (*PACKAGES, "bench", "migrations", "tests")
PATTERNS = ("*.py", "*.js", "*.css")


def long_parts(path: Path, text: str, tree: ast.Module | None) -> Iterator[str]:
    if (lines := text.count("\n") + 1) > MAX_FILE_LINES:
        yield f"{path}: {lines} lines, at most {MAX_FILE_LINES}"
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if size > MAX_FUNCTION_LINES:
                yield f"{path}:{node.lineno}: {node.name} has {size} lines, at most {MAX_FUNCTION_LINES}"


def full_folders(paths: list[Path]) -> Iterator[str]:
    sources = (path for path in paths if path.parts[0] in SOURCES and path.suffix == ".py")
    folders = Counter(path.parent for path in sources if path.name != "__init__.py")
    for folder, count in folders.items():
        if count > MAX_FOLDER_MODULES:
            yield f"{folder}/: {count} modules, at most {MAX_FOLDER_MODULES}"


def shared_class_names(trees: dict[Path, ast.Module]) -> Iterator[str]:
    places: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for path, tree in trees.items():
        for node in tree.body if path.parts[0] in PACKAGES else ():
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[path.parts[0], node.name].append(f"{path}:{node.lineno}")
    for (package, name), found in places.items():
        if len(found) > 1:
            yield f"{package}: several classes are named {name}: {', '.join(found)}"


def main() -> int:
    listed = subprocess.run(["git", "ls-files", *PATTERNS], capture_output=True, text=True, check=True)
    texts = {Path(name): Path(name).read_text() for name in listed.stdout.split() if Path(name).exists()}
    trees = {path: ast.parse(text) for path, text in texts.items() if path.suffix == ".py"}
    found = [row for path, text in texts.items() for row in long_parts(path, text, trees.get(path))]
    found += [*full_folders(list(texts)), *shared_class_names(trees)]
    print("\n".join(found) or "House rules: kept.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
