"""`grpo rollouts` and `grpo rescore`: what a job sampled, as a table or a file, and under another grader."""

from __future__ import annotations

import os
import sys
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated, Any

import httpx
import typer

from service.cli.commands.jobs import JobId, read_job
from service.cli.http.client import JOBS, Client
from service.cli.options import client_of
from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import JsonFlag, print_fields, print_json, print_table, say

SHOWN_CHARACTERS = 60
SHOWN_GROUPS = 10


class Filter(StrEnum):
    NO_SIGNAL = "no_signal"
    TRUNCATED = "truncated"
    GRADER_ERROR = "grader_error"
    BEST = "best"
    WORST = "worst"


class Export(StrEnum):
    JSONL = "jsonl"
    SFT = "sft"
    DPO = "dpo"


EXPORTED = {
    Export.JSONL: "rollouts.jsonl",
    Export.SFT: "rollouts/sft.jsonl",
    Export.DPO: "rollouts/dpo.jsonl",
}
Step = Annotated[int | None, typer.Option(min=0)]
FromStep = Annotated[int | None, typer.Option(min=0, help="First step of a range.")]
ToStep = Annotated[int | None, typer.Option(min=0, help="Last step of a range.")]
Split = Annotated[str | None, typer.Option(help="train, validation or retention.")]
Parts = list[str] | None


def rollouts(
    context: typer.Context,
    job_id: JobId,
    step: Step = None,
    from_step: FromStep = None,
    to_step: ToStep = None,
    split: Split = None,
    filter: Annotated[Filter | None, typer.Option(help="Only these, or ordered by reward.")] = None,
    fired: Annotated[Parts, typer.Option(help="A part of the reward that gave more than 0.")] = None,
    not_fired: Annotated[Parts, typer.Option(help="A part of the reward that gave no more than 0.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, newest step first.")] = 20,
    export: Annotated[Export | None, typer.Option(help="A file instead of a table.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where to; else printed.")] = None,
    min_reward: Annotated[float | None, typer.Option(help="sft: of a good answer (1).")] = None,
    min_margin: Annotated[float | None, typer.Option(help="dpo: between the two rewards (0).")] = None,
    per_prompt: Annotated[int | None, typer.Option(help="sft, dpo: examples of one prompt (1).")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what a job sampled, completion by completion, or export it.

    jsonl: all groups. sft: the best answers, for a supervised job. dpo: good and bad answers in pairs.
    """
    asked = {"step": step, "from_step": from_step, "to_step": to_step, "split": split}
    asked |= {"filter": filter, "fired": _joined(fired), "not_fired": _joined(not_fired)}
    wanted = {"min_reward": min_reward, "min_margin": min_margin, "per_prompt": per_prompt}
    with client_of(context) as client:
        if export is not None:
            _export(client, f"{JOBS}/{job_id}/{EXPORTED[export]}", output, {**asked, **wanted})
            return
        found = list(client.pages(f"{JOBS}/{job_id}/rollouts/completions", limit, **asked))
    if as_json:
        print_json(found)
        return
    columns = ("step", "split", "row", "reward", "advantage", "tokens", "ended", "parts", "text")
    print_table(columns, [_line(one) for one in found])


def rescore(
    context: typer.Context,
    job_id: JobId,
    grader: Annotated[Path, typer.Argument(metavar="GRADER.json", exists=True, dir_okay=False)],
    from_step: FromStep = None,
    to_step: ToStep = None,
    split: Annotated[str, typer.Option(help="train or validation.")] = "train",
    limit: Annotated[int, typer.Option(min=1, help="Completions, whole steps, the newest first.")] = 512,
    advantage: Annotated[str | None, typer.Option(help="Estimator; else the job's own.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show how another grader would have changed rewards and advantages. Nothing of the job is changed."""
    body = {"grader": read_job(grader), "from_step": from_step, "to_step": to_step, "split": split}
    body |= {"limit": limit, "advantage": advantage}
    with client_of(context) as client:
        found = client.post(f"{JOBS}/{job_id}/rollouts/rescore", body)
    if as_json:
        print_json(found)
        return
    print_fields(_summary(found))
    for error in found["summary"]["errors"]:
        say(f"{error['count']} × {error['part']}: {error['message']}", "yellow")
    moved = sorted(found["data"], key=lambda group: -group["num_sign_changes"])[:SHOWN_GROUPS]
    columns = ("group", "mean before", "mean after", "rank agreement", "sign changes")
    print_table(
        columns,
        [
            (
                *(group["id"], _number(group["mean_before"]), _number(group["mean_after"])),
                *(_number(group["rank_agreement"]), group["num_sign_changes"]),
            )
            for group in moved
        ],
    )


def _summary(found: dict[str, Any]) -> list[tuple[str, str]]:
    summary = found["summary"]
    before, after = summary["before"], summary["after"]
    changes = {
        "mean reward": "mean_reward",
        "groups with signal": "share_with_signal",
        "not scored": "num_unscored",
    }
    rollouts = f"{summary['num_completions']} completions, {summary['num_groups']} groups"
    return [
        ("rollouts", f"{rollouts}, steps {summary['from_step']} to {summary['to_step']}"),
        ("advantages", found["advantage"]),
        *((name, f"{_number(before[key])} → {_number(after[key])}") for name, key in changes.items()),
        ("rank agreement", _number(summary["rank_agreement"])),
        ("sign changes", str(summary["num_sign_changes"])),
    ]


def _export(client: Client, path: str, output: Path | None, params: dict[str, Any]) -> None:
    """Streams to the file, which appears whole or not at all, or to standard output."""
    if output is None:
        _copy(client, path, sys.stdout.buffer, params)
        return
    with tempfile.NamedTemporaryFile(dir=output.parent, prefix=".rollouts-", delete=False) as file:
        try:
            _copy(client, path, file, params)
            file.flush()
            os.replace(file.name, output)
        except BaseException:
            os.unlink(file.name)
            raise
    say(str(output))


def _copy(client: Client, path: str, file: IO[bytes], params: dict[str, Any]) -> None:
    try:
        with client.streaming(path, headers={}, **params) as response:
            for piece in response.iter_bytes():
                file.write(piece)
    except httpx.TransportError as error:
        raise CommandError(f"the export broke off: {error}", code="unreachable") from error


def _line(one: dict[str, Any]) -> tuple[Any, ...]:
    parts = " ".join(f"{name}={_number(score)}" for name, score in one["parts"].items())
    said = " ".join(one["text"].split())
    text = said if len(said) <= SHOWN_CHARACTERS else f"{said[: SHOWN_CHARACTERS - 1]}…"
    return (
        *(one["step"], one["split"], one["row"] + 1, _number(one["reward"]), _number(one["advantage"])),
        *(one["num_tokens"], one["finish_reason"], parts, text),
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _joined(names: Parts) -> str | None:
    return ",".join(names) if names else None
