"""`grpo import-trl`: another trainer's configuration becomes a job, with a line for every field."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import JsonFlag, literal, print_json, say, stderr

if TYPE_CHECKING:
    from service.importing.convert import Imported, Source
    from service.importing.rules import Line, Options

STYLES = {
    "maps": "green",
    "differs": "yellow",
    "not needed": "dim",
    "refused": "bold red",
    "unknown": "bold red",
}
SHOWN_CHARACTERS = 60


def import_trl(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.yaml", exists=True, dir_okay=False)],
    model: Annotated[str | None, typer.Option(help="Name in the catalogue, for the file's model.")] = None,
    data: Annotated[str | None, typer.Option(help="Dataset: JSONL, Parquet, CSV, JSON or hf://.")] = None,
    validation_data: Annotated[str | None, typer.Option(help="Held-out rows, in the same formats.")] = None,
    reward: Annotated[
        list[str] | None, typer.Option(help="A reward function of the training script: file.py:function.")
    ] = None,
    num_processes: Annotated[int, typer.Option(help="Of `accelerate launch`.", min=1)] = 1,
    source: Annotated[
        str | None, typer.Option("--from", help="trl, axolotl or verl; else by its fields.")
    ] = None,
    out: Annotated[
        Path, typer.Option("-o", "--output", "--out", help="Where the job is written.", dir_okay=False)
    ] = Path("job.json"),
    force: Annotated[
        bool, typer.Option("--force", help="Write it without what was refused or unknown.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Turn a GRPO configuration of TRL, Axolotl or verl into a job file for `grpo submit`.

    Every field is reported: what it maps to, what differs, what is refused and why.
    """
    from service.importing.dataset_formats import Unreadable
    from service.importing.reading import num_rows
    from service.importing.rules import Options

    try:
        rows, held_out = _rows(data, out, "rows"), _rows(validation_data, out, "held_out")
        options = Options(
            num_processes,
            model,
            _from(out, rows),
            _from(out, held_out),
            None if rows is None else num_rows(rows),
            tuple(reward or ()),
        )
        found = _imported(config, source, options)
    except (Unreadable, OSError, UnicodeDecodeError) as error:
        raise CommandError(str(error)) from error
    is_written = found.is_whole or force
    if is_written:
        out.write_text(json.dumps(found.job, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    _tell(found, out if is_written else None, as_json=as_json)
    if not is_written:
        hint = "mend them, or write the job without them by --force"
        raise CommandError(
            "no job was written: some fields are refused or unknown", code="refused", hint=hint
        )


def _tell(found: Imported, written: Path | None, *, as_json: bool) -> None:
    if as_json:
        report = [line.document() for line in found.lines]
        file = str(written) if written else None
        print_json({"source": found.source, "written": file, "job": found.job, "report": report})
        return
    _print_report(found)
    if written:
        first = "".join(f"write its {name} into it, then " for name in _missing(found.job))
        say(f"{written}: {first}`grpo submit {written} --watch` runs it")


def _missing(job: dict[str, Any]) -> list[str]:
    """What a job needs and this one got from nowhere."""
    kind = job["method"]["type"]
    is_ruled = kind == "supervised" or job["method"][kind].get("grader")
    return [*([] if job.get("training_file") else ["training_file"]), *([] if is_ruled else ["grader"])]


def _imported(config: Path, source: str | None, options: Options) -> Imported:
    from service.importing.convert import SOURCES, imported, reward_names
    from service.importing.reading import read_config, read_sources

    kind: Source | None = next((each for each in SOURCES if each == source), None)
    if source is not None and kind is None:
        raise CommandError(f"--from is one of {', '.join(SOURCES)}", code="usage")
    fields = read_config(config)
    names = [*reward_names(fields, kind), *options.rewards]
    sources = read_sources(names, (config.parent, Path()))
    return imported(fields, replace(options, sources=sources), kind)


def _rows(source: str | None, out: Path, name: str) -> Path | None:
    from service.importing.reading import as_rows

    return None if source is None else as_rows(source, out.with_name(f"{out.stem}.{name}.jsonl"))


def _from(out: Path, path: Path | None) -> str | None:
    """As a job file names a dataset: from its own folder."""
    return None if path is None else os.path.relpath(path, out.parent)


def _print_report(found: Imported) -> None:
    say(f"A configuration of {found.source}, {len(found.lines)} fields:")
    order = list(STYLES)
    for line in sorted(found.lines, key=lambda each: order.index(each.verdict)):
        say(_sentence(line), STYLES[line.verdict])
    counts = [f"{sum(line.verdict == verdict for line in found.lines)} {verdict}" for verdict in STYLES]
    stderr.print(literal(", ".join(counts)))


def _sentence(line: Line) -> str:
    pairs = [f"{name} = {_short(value)}" for name, value in zip(line.fields, line.values, strict=True)]
    given = "" if line.stated else " (its default)"
    parts = [part for part in (line.to, line.why) if part]
    return f"{line.verdict:<10}  {', '.join(pairs)}{given}  →  {'  ·  '.join(parts)}"


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
