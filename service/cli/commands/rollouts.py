"""`grpo rollouts` and `grpo rescore`: show or export a job's completions, and score them again."""

import os
import sys
import tempfile
from pathlib import Path
from typing import IO, Annotated, Any, Literal

import httpx
import typer

from service.cli.commands.jobs import method_of, read_job
from service.cli.http.client import JOBS, TERMINAL, Client
from service.cli.options import JobId, client_of
from service.cli.terminal.conversation import has_turns, print_conversations
from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import (
    JsonFlag,
    counted,
    excerpt,
    print_fields,
    print_json,
    print_table,
    say,
    short_number,
)

SHOWN_GROUPS = 10
COLUMNS = (
    *("step", "split", "row", "reward", "advantage", "tokens", "ended", "parts"),
    *("text", "reference", "why"),
)

Filter = Literal["no_signal", "truncated", "grader_error", "best", "worst"]
Export = Literal["jsonl", "sft", "dpo"]
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
    filter: Annotated[
        Filter | None, typer.Option(help="Only these completions, or sorted by reward.")
    ] = None,
    fired: Annotated[Parts, typer.Option(help="Only completions for which this part is above 0.")] = None,
    not_fired: Annotated[
        Parts, typer.Option(help="Only completions for which this part is not above 0.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of completions, newest step first.")] = 20,
    export: Annotated[Export | None, typer.Option(help="A file instead of a table.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Output file (default: stdout).")
    ] = None,
    min_reward: Annotated[float | None, typer.Option(help="sft: lowest reward of an answer (1).")] = None,
    min_margin: Annotated[
        float | None, typer.Option(help="dpo: smallest difference of two rewards (0).")
    ] = None,
    per_prompt: Annotated[int | None, typer.Option(help="sft, dpo: most examples of a prompt (1).")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what a job sampled, completion by completion, or export it.

    Completions that called tools or acted in an environment are printed as conversations, others as a table.
    jsonl: all groups. sft: the best answers, for a supervised job. dpo: good and bad answers in pairs.
    """
    selection = {"step": step, "from_step": from_step, "to_step": to_step, "split": split, "filter": filter}
    selection |= {"fired": ",".join(fired or []) or None, "not_fired": ",".join(not_fired or []) or None}
    client, path = client_of(context), f"{JOBS}/{job_id}/rollouts"
    _refuse_absent_steps(client, path, selection)
    if export is not None:
        path += ".jsonl" if export == "jsonl" else f"/{export}.jsonl"
        limits = {"min_reward": min_reward, "min_margin": min_margin, "per_prompt": per_prompt}
        _export(client, path, output, selection | limits)
        return
    found = list(client.pages(f"{path}/completions", limit, **selection))
    if any(map(has_turns, found)) and not as_json:
        print_conversations(found)
    else:
        print_table(found, COLUMNS, map(_row, found), as_json=as_json)


def _refuse_absent_steps(client: Client, path: str, selection: dict[str, Any]) -> None:
    """Raises CommandError with the steps that exist if none of the selected ones, or of all, has rollouts."""
    step, split = selection["step"], selection["split"]
    first, last = (selection["from_step"], selection["to_step"]) if step is None else (step, step)
    stored = {each["split"]: each["steps"] for each in client.get(f"{path}/overview")["data"]}
    low, high = first or 0, sys.maxsize if last is None else last
    if any(low <= each <= high for name, steps in stored.items() if split in (None, name) for each in steps):
        return
    wanted = f" at steps {low} to {'the last' if last is None else last}"
    if step is not None:
        wanted = f" at step {step}"
    elif first is None and last is None:
        wanted = ""
    kind = f" of {split}" if split else ""
    existing = "; ".join(f"{name}: {_ranges(steps)}" for name, steps in stored.items())
    hint = f"steps with rollouts: {existing}" if existing else _why_none(client, path)
    param = "step" if wanted else None
    raise CommandError(f"no rollouts{kind}{wanted}", code="no_rollouts", param=param, hint=hint)


def _why_none(client: Client, path: str) -> str:
    """Why the job has no rollouts."""
    job = client.get(path.removesuffix("/rollouts"))
    if method_of(job) == "supervised":
        return "a supervised job samples no completions"
    if job["status"] in TERMINAL:
        return "the job ended before a step was complete; `grpo diagnose` shows why"
    return "the job has not sampled anything yet"


def _ranges(steps: list[int]) -> str:
    """Ascending steps → `0, 5, 10–14`."""
    found: list[list[int]] = []
    for step in steps:
        if found and step == found[-1][-1] + 1:
            found[-1][1:] = [step]
        else:
            found.append([step])
    return ", ".join("–".join(map(str, each)) for each in found)


def rescore(
    context: typer.Context,
    job_id: JobId,
    grader: Annotated[Path, typer.Argument(metavar="GRADER.json", exists=True, dir_okay=False)],
    from_step: FromStep = None,
    to_step: ToStep = None,
    split: Annotated[str, typer.Option(help="train or validation.")] = "train",
    limit: Annotated[
        int, typer.Option(min=1, help="Number of completions, in whole steps, newest first.")
    ] = 512,
    advantage: Annotated[str | None, typer.Option(help="Estimator (default: the job's own).")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show how another grader would change rewards and advantages, without changing the job."""
    body = {"grader": read_job(grader), "from_step": from_step, "to_step": to_step, "split": split}
    client, path = client_of(context), f"{JOBS}/{job_id}/rollouts"
    _refuse_absent_steps(client, path, body | {"step": None})
    found = client.post(f"{path}/rescore", body | {"limit": limit, "advantage": advantage})
    if as_json:
        print_json(found)
        return
    print_fields(_summary(found))
    for error in found["summary"]["errors"]:
        say(f"{error['count']} × {error['part']}: {error['message']}", "yellow")
    moved = sorted(found["data"], key=lambda group: -group["num_sign_changes"])[:SHOWN_GROUPS]
    columns = ("group", "mean before", "mean after", "rank agreement", "sign changes")
    names = ("mean_before", "mean_after", "rank_agreement")
    rows = (
        (group["id"], *(short_number(group[name]) for name in names), group["num_sign_changes"])
        for group in moved
    )
    print_table(moved, columns, rows)


def _summary(found: dict[str, Any]) -> list[tuple[str, str]]:
    summary = found["summary"]
    before, after = summary["before"], summary["after"]
    changes = {
        "mean reward": "mean_reward",
        "groups with signal": "share_with_signal",
        "not scored": "num_unscored",
    }
    completions, groups = (counted(summary[f"num_{each}s"], each) for each in ("completion", "group"))
    first, last = summary["from_step"], summary["to_step"]
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    return [
        ("rollouts", f"{completions}, {groups}, {steps}"),
        ("advantages", found["advantage"]),
        *(
            (name, f"{short_number(before[key])} → {short_number(after[key])}")
            for name, key in changes.items()
        ),
        ("rank agreement", short_number(summary["rank_agreement"])),
        ("sign changes", str(summary["num_sign_changes"])),
    ]


def _export(client: Client, path: str, output: Path | None, params: dict[str, Any]) -> None:
    """Streams to standard output, or to the file, which appears complete or not at all."""
    if output is None:
        _copy(client, path, sys.stdout.buffer, params)
        return
    if output.is_dir() or not output.parent.is_dir():
        hint = "give the path of a file in a folder that exists"
        raise CommandError(f"cannot write to {output}", param="output", hint=hint)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".rollouts-") as scratch:
        partial = Path(scratch) / output.name
        with partial.open("wb") as file:
            _copy(client, path, file, params)
        os.replace(partial, output)
    say(output)


def _copy(client: Client, path: str, file: IO[bytes], params: dict[str, Any]) -> None:
    try:
        with client.streaming(path, headers={}, **params) as response:
            for piece in response.iter_bytes():
                file.write(piece)
    except httpx.TransportError as error:
        raise CommandError(f"the export was cut off: {error}", code="unreachable") from error


def _row(one: dict[str, Any]) -> tuple[Any, ...]:
    parts = " ".join(f"{name}={short_number(score)}" for name, score in one["parts"].items())
    reference = " ".join(f"{name}={value}" for name, value in one["reference"].items())
    rewards = (short_number(one["reward"]), short_number(one["advantage"]))
    texts = map(excerpt, (one["text"], reference, _why(one)))
    place = (one["step"], one["split"], one["row"] + 1)
    return *place, *rewards, one["num_tokens"], one["finish_reason"], parts, *texts


def _why(one: dict[str, Any]) -> str:
    """Why the reward is not full: the grader's feedback or, without any, the first failed test or step."""
    entries = (entry for part in one["explanations"].values() for entry in part)
    failed = next((entry for entry in entries if entry["passed"] is False), None)
    if one["feedback"] or failed is None:
        return str(one["feedback"])
    return f"{failed['label']}: {failed['detail'] or 'got ' + failed['got']}"
