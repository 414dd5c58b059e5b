"""Reads the configuration, the sources of reward functions and the dataset's rows, and runs none of them."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from service.importing.dataset_formats import Unreadable, is_jsonl, read_rows, write_jsonl

_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w.]*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_DATE = "tag:yaml.org,2002:timestamp"


class _Loader(yaml.SafeLoader):
    """Leaves dates as text: no field is a date, but the name of a run may look like one."""

    yaml_implicit_resolvers = {
        first: [each for each in resolvers if each[0] != _DATE]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def read_config(path: Path) -> dict[str, Any]:
    """A YAML mapping, or the `name=value` overrides of a command line in a shell script."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".sh":
        return _overrides(text)
    try:
        config = yaml.load(text, _Loader)  # noqa: S506 - a safe loader
    except yaml.YAMLError as error:
        raise Unreadable(f"{path} is not YAML: {error}") from error
    if not isinstance(config, dict):
        raise Unreadable(f"{path} does not contain a mapping of fields")
    return {str(name): value for name, value in config.items()}


def _overrides(text: str) -> dict[str, Any]:
    """Dotted names with their values, in which the script's own variables are expanded."""
    lines = text.replace("\\\n", " ").splitlines()
    words = [word for line in lines for word in _words(line)]
    pairs = [match.groups() for word in words if (match := _OVERRIDE.fullmatch(word))]
    variables = {name: value for name, value in pairs if "." not in name}

    def filled(value: str) -> str:
        return _VARIABLE.sub(lambda found: variables.get(found[1], found[0]), value)

    return {name: _value(filled(value) or "null") for name, value in pairs if "." in name}


def _value(text: str) -> Any:
    """The value that YAML reads; a text that is not YAML, such as the name `sums: lr: 1`, as it is."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a safe loader
    except yaml.YAMLError:
        return text


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # a quotation over several lines, which no override needs
        return []


def read_sources(names: Iterable[str], folders: Sequence[Path]) -> dict[str, str]:
    """`package.module.function` or `file.py:function` → its module's source, if it is found."""
    found = {}
    for name in names:
        candidates = (folder / _relative(name) for folder in folders)
        if path := next((path for path in candidates if path.is_file()), None):
            found[name] = path.read_text(encoding="utf-8")
    return found


def _relative(name: str) -> Path:
    if ":" in name:
        return Path(name.rpartition(":")[0])
    return Path(f"{name.rpartition('.')[0].replace('.', '/')}.py")


def as_rows(source: str, target: Path) -> Path:
    """The dataset as a JSONL file: itself, or `target` if its rows had to be rewritten.

    A `prompt` that is a list of messages is renamed to `messages`; the messages are kept as `prompt_messages`
    too, for reward functions that read prompts. Raises Unreadable, OSError.
    """
    rows = list(read_rows(source))
    if is_jsonl(source) and not any(isinstance(row.get("prompt"), list) for row in rows):
        return Path(source)
    write_jsonl(target, map(_row, rows), {})
    return target


def num_rows(path: Path) -> int:
    """Number of rows of a JSONL file."""
    with path.open("rb") as lines:
        return sum(bool(line.strip()) for line in lines)


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    prompt = row.get("prompt")
    if not isinstance(prompt, list):
        return dict(row)
    rest = {name: value for name, value in row.items() if name != "prompt"}
    return {"messages": prompt, **rest, "prompt_messages": prompt}
