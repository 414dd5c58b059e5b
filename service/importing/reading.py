"""Reads the configuration, the sources of reward functions and the dataset's rows, and runs none of them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from service.importing.dataset_formats import Unreadable, is_jsonl, read_rows, write_jsonl
from service.importing.shell import assigned

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
        json.dumps(config, default=str, skipkeys=True)
    except yaml.YAMLError as error:
        raise Unreadable(f"{path} is not YAML: {error}") from error
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{path} is nested too deeply, or a value contains itself") from error
    if not isinstance(config, dict):
        raise Unreadable(f"{path} does not contain a mapping of fields")
    return {str(name): value for name, value in config.items()}


def _overrides(text: str) -> dict[str, Any]:
    """Dotted names with their values, in which the script's own variables are expanded."""
    return {name: _value(value or "null") for name, value in assigned(text) if "." in name}


def _value(text: str) -> Any:
    """The value that YAML reads, or the text itself if it is not YAML, such as the name `sums: lr: 1`."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a safe loader
    except yaml.YAMLError:
        return text


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

    A `prompt` that is a list of messages is renamed to `messages`; messages of either name are kept as
    `prompt_messages` too, for reward functions that read prompts. Raises Unreadable, OSError.
    """
    rows = list(read_rows(source))
    if is_jsonl(source) and not any(_conversation(row) for row in rows):
        return Path(source)
    write_jsonl(target, map(_row, rows), {})
    return target


def num_rows(path: Path) -> int:
    """Number of rows of a JSONL file."""
    with path.open("rb") as lines:
        return sum(bool(line.strip()) for line in lines)


def _conversation(row: Mapping[str, Any]) -> list[Any] | None:
    """The messages that the row must keep as `prompt_messages`; None if it has them already, or none."""
    has_them = "prompt" not in row and "prompt_messages" in row
    prompt = row.get("prompt", row.get("messages"))
    return prompt if isinstance(prompt, list) and not has_them else None


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    prompt = _conversation(row)
    if prompt is None:
        return dict(row)
    rest = {name: value for name, value in row.items() if name not in ("prompt", "messages")}
    return {"messages": prompt, **rest, "prompt_messages": prompt}
