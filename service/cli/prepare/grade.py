"""`grpo grade`: a grader's rewards for answers to rows of a dataset, before any job."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from grpo_engine.contract.strict_json import parse_json
from service.cli.commands.jobs import method_of, read_job
from service.cli.http.client import Client
from service.cli.options import client_of
from service.cli.terminal.errors import CommandError
from service.cli.terminal.histogram import bars, bins_of
from service.cli.terminal.output import JsonFlag, excerpt, print_json, print_table, say, short_number
from service.cli.terminal.progress import waiting

RUN = "/v1/fine_tuning/alpha/graders/run"
SHOWN_PRINTS = 3
"""Number of rows whose prints are shown; `--json` has all."""
SHOWN_ERRORS = 5
ANSWER_FIELDS = ("answer", "completion", "text", "output_text")

Row = dict[str, Any]


def grade(
    context: typer.Context,
    grader: Annotated[
        Path,
        typer.Argument(
            metavar="GRADER.json", exists=True, dir_okay=False, help="A grader, or a job with one."
        ),
    ],
    rows: Annotated[Path, typer.Option(exists=True, help="Dataset: JSONL, CSV, Parquet or JSON.")],
    answers: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="JSONL: one answer per row, a string or an object with `answer`.",
        ),
    ] = None,
    answer: Annotated[
        str | None, typer.Option(help="One answer for all rows; `{{item.answer}}` inserts a row's field.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Number of rows, from the first.", min=1, max=1000)] = 20,
    as_json: JsonFlag = False,
) -> None:
    """Try a grader: the reward of an answer to each row, its parts and its errors.

    Exit code 1 if an answer cannot be scored.
    """
    rule, items = grader_in(grader), _rows(rows, limit)
    texts = list(_answers(items, answers, answer))
    client, found = client_of(context), []
    with waiting("grading…") as rename:
        for number, (item, text) in enumerate(zip(items, texts, strict=True), 1):
            rename(f"grading row {number} of {len(items)}…")
            found.append({"row": number, **_graded(client, rule, item, text)})
    rewards = [one["reward"] for one in found if one["reward"] is not None]
    unscored = len(found) - len(rewards)
    if as_json:
        print_json(_document(found, rewards))
    else:
        _show(found, rewards)
    if unscored:
        message = f"{unscored} of {len(found)} answers cannot be scored"
        raise CommandError(
            message, code="not_scorable", hint="in training they are left out, not scored as 0"
        )


def grader_in(path: Path) -> dict[str, Any]:
    """The grader in the file: the whole file, or the grader of its job."""
    body = read_job(path)
    if "method" not in body:
        return body
    settings = body["method"].get(method_of(body)) if isinstance(body["method"], dict) else None
    found = settings.get("grader") if isinstance(settings, dict) else None
    if not isinstance(found, dict):
        raise CommandError(f"{path} is a job without a grader", param="method")
    return found


def _rows(path: Path, limit: int) -> list[Row]:
    from service.importing.dataset_formats import Unreadable, read_rows, stored_rows

    try:
        found = list(stored_rows(islice(read_rows(str(path)), limit)))
    except (Unreadable, OSError) as error:
        raise CommandError(str(error), param="rows") from error
    if not found:
        raise CommandError(f"{path} has no rows", param="rows")
    return found


def _answers(items: list[Row], path: Path | None, template: str | None) -> Iterator[str]:
    """The answer to each row. Raises CommandError."""
    if (path is None) == (template is None):
        hint = (
            "--answer '{{item.answer}}' grades the reference answer of each row, which should earn the most"
        )
        raise CommandError("give --answer TEXT or --answers FILE", code="usage", hint=hint)
    if template is not None:
        yield from (_filled(template, item, number) for number, item in enumerate(items, 1))
    elif path is not None:
        try:
            # a JSON text may contain other characters at which splitlines would split it
            lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
        except ValueError as error:
            raise CommandError(f"{path} is not UTF-8: {error}", param="answers") from error
        if len(lines) < len(items):
            message = f"{path} has {len(lines)} answers for {len(items)} rows"
            raise CommandError(message, param="answers", hint=f"--limit {len(lines)} grades fewer rows")
        yield from (_answer_in(line, f"{path}, line {n}") for n, line in enumerate(lines[: len(items)], 1))


def _filled(template: str, item: Row, number: int) -> str:
    from grpo_engine.contract.records import Sample
    from grpo_engine.graders.errors import UnscorableError
    from grpo_engine.graders.template import TemplateError, render

    try:
        return render(template, Sample(output_text=""), item)
    except TemplateError as error:
        raise CommandError(f"--answer: {error}", param="answer") from error
    except UnscorableError as error:
        hint = f"the fields of this row are {', '.join(item)}"
        raise CommandError(f"--answer, row {number}: {error.message}", param="answer", hint=hint) from error


def _answer_in(line: str, place: str) -> str:
    try:
        value = parse_json(line)
    except ValueError as error:
        raise CommandError(f"{place} is not JSON: {error}", param="answers") from error
    if isinstance(value, dict):
        value = next((value[name] for name in ANSWER_FIELDS if name in value), None)
    if not isinstance(value, str):
        fields = ", ".join(f"`{name}`" for name in ANSWER_FIELDS)
        raise CommandError(f"{place} is neither text nor an object with one of {fields}", param="answers")
    return value


def _graded(client: Client, rule: dict[str, Any], item: Row, answer: str) -> Row:
    # grading changes nothing, so it may be repeated like a read
    found = client.create(RUN, {"grader": rule, "model_sample": answer, "item": item})
    reward = found["reward"] if found["scorable"] else None
    return {
        "answer": answer,
        "reward": reward,
        "parts": found["sub_rewards"],
        "errors": found["grader_errors"],
        "printed": found["printed"],
    }


def _document(found: list[Row], rewards: list[float]) -> dict[str, Any]:
    return {
        "data": found,
        "mean_reward": sum(rewards) / len(rewards) if rewards else None,
        "num_unscored": len(found) - len(rewards),
        "histogram": [{"low": low, "high": high, "count": count} for low, high, count in bins_of(rewards)],
    }


def _show(found: list[Row], rewards: list[float]) -> None:
    cells = (
        (one["row"], short_number(one["reward"]), _parts(one["parts"]), excerpt(one["answer"]))
        for one in found
    )
    print_table(found, ("row", "reward", "parts", "answer"), cells)
    places = defaultdict(list)
    for one in found:
        for part, error in one["errors"].items():
            places[part, error["code"], error["message"]].append(one["row"])
    most_frequent = sorted(places.items(), key=lambda entry: -len(entry[1]))[:SHOWN_ERRORS]
    for (part, code, message), rows in most_frequent:
        say(f"\n{len(rows)} × {part}: {code}, first in row {rows[0]}:\n{message}", "yellow")
    for one in [one for one in found if one["printed"]][:SHOWN_PRINTS]:
        for part, text in one["printed"].items():
            say(f"\nrow {one['row']}, {part} printed:\n{text}")
    if rewards:
        say(f"\n{len(rewards)} rewards, mean {short_number(sum(rewards) / len(rewards))}")
        for line in bars(bins_of(rewards)):
            say(line)


def _parts(parts: dict[str, float | None]) -> str:
    return " ".join(f"{name}={short_number(reward)}" for name, reward in parts.items())
