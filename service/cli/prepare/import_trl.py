"""`grpo import-trl`: turns another trainer's configuration into a job file, and reports every field."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import JsonFlag, excerpt, literal, print_json, say, stderr

if TYPE_CHECKING:
    from service.importing.convert import Imported, Source
    from service.importing.rules import Line

STYLES = {
    "maps": "green",
    "differs": "yellow",
    "not needed": "dim",
    "refused": "bold red",
    "unknown": "bold red",
}

Rewards = Annotated[list[str] | None, typer.Option(help="A further reward function: file.py:function.")]
From = Annotated[
    Literal["trl", "axolotl", "verl"] | None,
    typer.Option("--from", help="Origin of the configuration (default: by its fields)."),
]
Out = Annotated[Path, typer.Option("-o", "--output", "--out", help="The job file to write.", dir_okay=False)]


def import_trl(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.yaml|train.py", exists=True, dir_okay=False)],
    model: Annotated[str | None, typer.Option(help="Name in the catalogue, for the file's model.")] = None,
    data: Annotated[str | None, typer.Option(help="Dataset: JSONL, Parquet, CSV, JSON or hf://.")] = None,
    validation_data: Annotated[str | None, typer.Option(help="Held-out rows, in the same formats.")] = None,
    reward: Rewards = None,
    num_processes: Annotated[int, typer.Option(help="Processes of `accelerate launch`.", min=1)] = 1,
    source: From = None,
    out: Out = Path("job.json"),
    force: Annotated[
        bool, typer.Option("--force", help="Write the job without the refused and unknown fields.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Turn a configuration of TRL, Axolotl or verl, or a script of TRL, into a job file for `grpo submit`.

    A script (.py) is read by its syntax tree and never run. Every field is reported: what it maps to, what
    differs, what is refused and why.
    """
    from service.importing.dataset_formats import Unreadable

    try:
        options = {"model": model, "num_processes": num_processes, **_datasets(data, validation_data, out)}
        found = _imported(config, source, tuple(reward or ()), **options)
    except UnicodeDecodeError as error:
        raise CommandError(f"{config} or a file that it names is not UTF-8: {error}") from error
    except (Unreadable, OSError) as error:
        raise CommandError(str(error)) from error
    is_written = found.is_whole or force
    if is_written:
        out.write_text(json.dumps(found.job, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    _print(found, out if is_written else None, as_json=as_json)
    if not is_written:
        hint = "correct them, or write the job without them with --force"
        raise CommandError(
            "no job was written: some fields are refused or unknown", code="not_imported", hint=hint
        )


def _datasets(data: str | None, validation_data: str | None, out: Path) -> dict[str, Any]:
    """The datasets' options: files of rows, which are written beside the job file if necessary."""
    from service.importing.reading import as_rows, num_rows

    rows, held_out = (
        as_rows(given, out.with_name(f"{out.stem}.{name}.jsonl")) if given else None
        for given, name in ((data, "rows"), (validation_data, "held_out"))
    )
    return {
        # a job file names its datasets from its own folder
        "data": os.path.relpath(rows, out.parent) if rows else None,
        "validation_data": os.path.relpath(held_out, out.parent) if held_out else None,
        "num_rows": num_rows(rows) if rows else None,
    }


def _imported(config: Path, kind: Source | None, rewards: tuple[str, ...], **options: Any) -> Imported:
    """The job of a configuration or script. Raises Unreadable, OSError, UnicodeDecodeError."""
    from service.importing.convert import imported, reward_names
    from service.importing.reading import read_config, read_sources
    from service.importing.rules import Options
    from service.importing.script.trainer import read_script

    script = read_script(config) if config.suffix == ".py" else None
    kind = "trl" if script else kind
    fields = script.fields if script else read_config(config)
    sources = read_sources([*reward_names(fields, kind), *rewards], (config.parent, Path()))
    sources |= script.sources if script else {}
    found = imported(fields, Options(rewards=rewards, sources=sources, **options), kind)
    return replace(found, lines=(*found.lines, *script.lines)) if script else found


def _print(found: Imported, written: Path | None, *, as_json: bool) -> None:
    if as_json:
        report = [line.document() for line in found.lines]
        file = str(written) if written else None
        print_json({"source": found.source, "written": file, "job": found.job, "report": report})
        return
    say(f"A configuration of {found.source}, {len(found.lines)} fields:")
    order = list(STYLES)
    for line in sorted(found.lines, key=lambda each: order.index(each.verdict)):
        say(_sentence(line), STYLES[line.verdict])
    counts = [f"{sum(line.verdict == verdict for line in found.lines)} {verdict}" for verdict in STYLES]
    stderr.print(literal(", ".join(counts)))
    if written:
        missing = "".join(f"write its {name} into it, then " for name in _missing(found.job))
        say(f"{written}: {missing}`grpo submit {written} --watch` runs it")


def _missing(job: dict[str, Any]) -> list[str]:
    """The required fields that neither the configuration nor the options gave the job."""
    grader = job["method"]["reinforcement"]["grader"]
    needed = {"training_file": job.get("training_file"), "grader": grader}
    return [name for name, value in needed.items() if not value]


def _sentence(line: Line) -> str:
    pairs = [f"{name} = {_short(value)}" for name, value in zip(line.fields, line.values, strict=True)]
    given = "" if line.stated else " (its default)"
    parts = [part for part in (line.to, line.why) if part]
    return f"{line.verdict:<10}  {', '.join(pairs)}{given}  →  {'  ·  '.join(parts)}"


def _short(value: object) -> str:
    return excerpt(json.dumps(value, ensure_ascii=False, default=str))
