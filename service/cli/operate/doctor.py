"""`grpo doctor`: checks this deployment from this machine."""

from collections.abc import Iterable
from typing import Annotated

import typer

from service.cli.operate.settings import explained_home, private_settings
from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import JsonFlag, console, literal, print_json
from service.ops.doctor.findings import Finding, Level, failure

STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILURE: "bold red"}


Model = Annotated[str | None, typer.Option("--model", help="Load this model and show how jobs would run it.")]


def doctor(model: Model = None, as_json: JsonFlag = False) -> None:
    """Check this deployment: a line for each finding, and what to do. Exit code 1 if a check fails."""
    found = []
    for finding in _findings(model):
        found.append(finding)
        if not as_json:
            _show(finding)
    if as_json:
        print_json([finding._asdict() for finding in found])
    if any(finding.level is Level.FAILURE for finding in found):
        raise typer.Exit(1)


def _findings(model: str | None) -> Iterable[Finding]:
    from service.ops.doctor.examination import examine
    from service.ops.doctor.software import packages

    try:
        settings = private_settings()
        with explained_home(settings.home):
            settings.home.mkdir(parents=True, exist_ok=True)
    except CommandError as error:
        advice = f"Correct {error.param or 'the environment'}; docs/reference/configuration.md lists all."
        return [*packages(), failure("settings", error.message, advice)]
    return examine(settings, model_name=model)


def _show(finding: Finding) -> None:
    line = literal(f"{finding.level:<8} ", STYLES[finding.level])
    line.append_text(literal(f"{finding.check:<13} ", "bold"))
    line.append_text(literal(finding.found))
    console.print(line, soft_wrap=True)
    if finding.advice:
        console.print(literal(f"{'':<8} → {finding.advice}"), soft_wrap=True)
