"""`grpo doctor`: what is wrong with this deployment, as seen from this machine, and what to do."""

from __future__ import annotations

from collections.abc import Iterable

import typer

from service.cli.operate.settings import keep_private, settings_here
from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import JsonFlag, console, literal, print_json
from service.ops.doctor.findings import Finding, Level, failure

STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILURE: "bold red"}


def doctor(as_json: JsonFlag = False) -> None:
    """Check this deployment: a line for each finding, and what to do. Exit code 1 where something fails."""
    keep_private()
    found = []
    for finding in _findings():
        found.append(finding)
        if not as_json:
            _show(finding)
    if as_json:
        print_json([finding._asdict() for finding in found])
    if any(finding.level is Level.FAILURE for finding in found):
        raise typer.Exit(1)


def _findings() -> Iterable[Finding]:
    from service.ops.doctor.examination import examine
    from service.ops.doctor.software import packages

    try:
        settings = settings_here()
    except CommandError as error:
        where = error.param or "the environment"
        return [
            *packages(),
            failure(
                "settings", error.message, f"Correct {where}; docs/reference/configuration.md lists all."
            ),
        ]
    settings.home.mkdir(parents=True, exist_ok=True)
    return examine(settings)


def _show(finding: Finding) -> None:
    line = literal(f"{finding.level:<8} ", STYLES[finding.level])
    line.append_text(literal(f"{finding.check:<12} ", "bold"))
    line.append_text(literal(finding.found))
    console.print(line, soft_wrap=True)
    if finding.advice:
        console.print(literal(f"{'':<8} → {finding.advice}"), soft_wrap=True)
